# Two commands do everything on a machine with Python 3.11+, pip, make, git and g++: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
DEMO := $(VENV)/.demo
READY := $(VENV)/.ready
NATIVE := $(wildcard src/lln/ops/native/csrc/*) src/lln/ops/native/build.py

# What the library is without its extras: the operations, their functions, states, layers and matching.
CORE := tests/ops tests/native tests/test_attention.py tests/test_state.py tests/test_layers.py tests/test_matching.py tests/test_errors.py

.DEFAULT_GOAL := help
.PHONY: help setup demo test alone wheels aarch lint docs bench sweep sanitize calibrate clean

help:  ## show this list
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

setup: $(READY)  ## make .venv and install library and laboratory with all their pinned dependencies

# torch goes first and exactly: a looser request could bring a GPU build of several gigabytes.
$(DEMO): pyproject.toml setup.py lab/pyproject.toml constraints.txt $(NATIVE)
	$(PYTHON) -m venv $(VENV)
	$(PIP) torch==2.13.0
	$(PIP) -e . -e lab
	@touch $@

$(READY): $(DEMO)
	$(PIP) -e '.[dev]' -e 'lab[all]'
	@touch $@

demo: $(DEMO)  ## train softmax, LLN and LLN+Diag side by side, time them, and write runs/demo/report.html
	$(BIN)/lln demo

test: $(READY)  ## run the tests
	$(BIN)/python -m pytest -n 2 --dist worksteal

alone: $(READY)  ## build the library's wheel, install it with torch and numpy only, and run its core tests there
	rm -rf build/alone && mkdir -p build/alone
	$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps -w build/alone .
	$(PYTHON) -m venv build/alone/venv
	build/alone/venv/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch==2.13.0 numpy
	build/alone/venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps build/alone/*.whl
	build/alone/venv/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt pytest pytest-timeout hypothesis
	cp -r tests pyproject.toml build/alone/
	cd build/alone && LLN_CONTRACT_EXAMPLES=40 venv/bin/python -m pytest $(CORE)

wheels:  ## build source archives and wheels for Linux (x86-64, aarch64), macOS and Windows into dist/, with the kernel inside
	$(PYTHON) -m venv build/release
	build/release/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt 'setuptools>=77' ziglang auditwheel
	build/release/bin/python tools/wheels.py --to dist

aarch: wheels  ## run the kernel's contract tests on 64-bit ARM, emulated by qemu-user (needs qemu-user and debootstrap; slow)
	build/release/bin/python tools/aarch64.py

lint: $(READY)  ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(READY)  ## build the documentation as a site in build/site; broken links are errors
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

bench: $(READY)  ## measure speed and memory as ratios in one run; JSON and plots in runs/bench/
	$(BIN)/lln bench operator --out runs/bench
	$(BIN)/lln bench kernels --out runs/bench

sweep: $(READY)  ## the slow property tests and statistical gates
	$(BIN)/python -m pytest -m slow -n 2 --dist worksteal

sanitize: $(READY)  ## the native tests under AddressSanitizer and UndefinedBehaviorSanitizer
	$(BIN)/python tools/sanitize.py

calibrate: $(READY)  ## measure the matching table again
	$(BIN)/lln calibrate

clean:  ## remove the environment, builds and runs
	rm -rf $(VENV) build runs .pytest_cache .mypy_cache .ruff_cache .hypothesis src/*.egg-info lab/src/*.egg-info lab/build
	rm -f src/lln/ops/native/_kernel.*
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
