# Two commands do everything on a machine with Python 3.11.5+, pip, make, git and g++: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
NATIVE := $(wildcard src/lln/backends/native/csrc/*) src/lln/backends/native/build.py

.DEFAULT_GOAL := help
.PHONY: help setup demo test lint docs bench sweep sanitize calibrate clean

help:  ## show this list
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

setup: $(READY)  ## make .venv and install the package with its pinned dependencies

# torch goes first and exactly: a looser request could bring a GPU build of several gigabytes.
$(READY): pyproject.toml setup.py constraints.txt $(NATIVE)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check torch==2.13.0 -c constraints.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]' -c constraints.txt
	@touch $@

demo: $(READY)  ## pre-train softmax, LLN and LLN+Diag on text that every Python has, watch, time; runs/demo/report.html
	$(BIN)/lln demo

test: $(READY)  ## run the tests
	$(BIN)/python -m pytest -n 2 --dist worksteal

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
	$(BIN)/python -m lln.backends.native.sanitize

calibrate: $(READY)  ## measure the matching table anew
	$(BIN)/lln calibrate

clean:  ## remove the environment, builds and runs
	rm -rf $(VENV) build runs .pytest_cache .mypy_cache .ruff_cache .hypothesis src/*.egg-info
	rm -f src/lln/backends/native/*.so
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
