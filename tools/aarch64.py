"""Run the kernel's tests on 64-bit ARM, emulated: Debian's Python for arm64 under qemu-user, torch's wheel, our wheel's kernel.

    python tools/aarch64.py [--wheel WHEEL] [--examples 8] [pytest arguments]

Needs qemu-user and debootstrap (Linux, as root), and the network the first time; everything lies in build/aarch64. torch 2.9
is the last release whose wheel for aarch64 brings no GPU libraries. Emulation is some twenty times slower than a processor, so
by default few examples are drawn: the contract of LLN and LLN+Diag, and the kernel's accuracy, bits and blocks.
"""

import argparse
import os
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
HOME = ROOT / "build/aarch64"
SYSTEM, SITE, KERNEL = HOME / "system", HOME / "site", HOME / "kernel"
TORCH = "torch==2.9.0"
NEEDED = (  # by torch and by the tests
    "numpy sympy mpmath networkx jinja2 markupsafe fsspec filelock typing_extensions setuptools pytest pytest-timeout "
    "pluggy iniconfig packaging pygments hypothesis sortedcontainers"
)
TESTS = ["tests/native/test_accuracy.py", "tests/native/test_bits.py", "tests/native/test_blocks.py", "tests/ops"]
ONLY = "(native and contract) or test_accuracy or test_bits or test_blocks"


def make_system() -> None:
    """Debian's packages for arm64, unpacked: a root for the emulator, with nothing set up or run."""
    if (SYSTEM / "usr/bin/python3.11").exists():
        return
    include = "--include=python3.11,libpython3.11-stdlib,libgomp1"
    _run("debootstrap", "--arch=arm64", "--foreign", "--variant=minbase", include, "bookworm", str(SYSTEM))
    for package in (SYSTEM / "var/cache/apt/archives").glob("*.deb"):
        _run("dpkg", "-x", str(package), str(SYSTEM))


def make_site() -> None:
    """torch and what the tests import, for aarch64, unpacked."""
    if (SITE / "torch").exists():
        return
    wheels = HOME / "wheels"
    pip = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        "--only-binary=:all:",
        "--python-version=3.11",
    ]
    pip += [
        "--platform=manylinux_2_28_aarch64",
        "--platform=manylinux_2_27_aarch64",
        "--platform=manylinux2014_aarch64",
    ]
    _run(*pip, "-d", str(wheels), TORCH)
    _run(*pip, "-d", str(wheels), "-c", str(_constraints()), *NEEDED.split())
    for wheel in wheels.glob("*.whl"):
        with zipfile.ZipFile(wheel) as files:
            files.extractall(SITE)


def _constraints() -> Path:
    """The pinned versions, but for torch's."""
    path = HOME / "constraints.txt"
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    path.write_text("\n".join(line for line in lines if not line.startswith("torch==")))
    return path


def _run(*command: str) -> None:
    subprocess.run(command, check=True)


def main() -> None:
    """Set up what is missing, run the tests, and exit with pytest's status."""
    parser = argparse.ArgumentParser(description="Run the kernel's tests on emulated 64-bit ARM.")
    parser.add_argument("--wheel", type=Path, help="default: the one for aarch64 in dist")
    parser.add_argument("--examples", type=int, default=8, help="of each drawn contract test")
    options, arguments = parser.parse_known_args()
    wheel = options.wheel or next(iter((ROOT / "dist").glob("*_aarch64.whl")), None)
    if wheel is None:
        sys.exit("there is no wheel for aarch64 in dist: run `make wheels` first")
    HOME.mkdir(parents=True, exist_ok=True)
    make_system()
    make_site()
    with zipfile.ZipFile(wheel) as files:
        library = files.extract("lln/ops/native/_kernel.so", KERNEL)
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, (ROOT / "src", ROOT, SITE))),
        "LLN_NATIVE_LIBRARY": library,
        "LLN_CONTRACT_EXAMPLES": str(options.examples),
        "OMP_NUM_THREADS": "1",
    }
    python = ["qemu-aarch64", "-L", str(SYSTEM), str(SYSTEM / "usr/bin/python3.11")]
    pytest = ["-m", "pytest", "-p", "no:cacheprovider", "--timeout=3600", *(arguments or [*TESTS, "-k", ONLY])]
    sys.exit(subprocess.run([*python, *pytest], cwd=ROOT, env=environment, check=False).returncode)


if __name__ == "__main__":
    main()
