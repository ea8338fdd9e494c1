"""Run the native tests on a build with AddressSanitizer and UndefinedBehaviorSanitizer.

    python tools/sanitize.py [pytest arguments]

The library goes to a temporary directory; the interpreter itself is not instrumented, so the sanitizer's runtime is loaded
ahead of everything else, and leaks, which at exit are the interpreter's own, are not counted. Pytest must not capture (-s):
a report goes straight to the terminal, and the process ends there.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from lln.ops.native.build import build, compiler

TESTS = "tests/native"


def runtime() -> str:
    """The compiler's sanitizer runtime, and the C++ runtime, without which torch's exceptions end the process."""
    sanitizer = "libclang_rt.asan-x86_64.so" if "clang" in compiler()[0] else "libasan.so"
    return " ".join(_library(name) for name in (sanitizer, "libstdc++.so.6"))


def _library(name: str) -> str:
    found = subprocess.run([*compiler(), f"-print-file-name={name}"], capture_output=True, text=True, check=True)
    return str(Path(found.stdout.strip()).resolve())


def main() -> None:
    """Build, run, and exit with pytest's status."""
    with tempfile.TemporaryDirectory() as scratch:
        environment = {
            **os.environ,
            "LLN_NATIVE_LIBRARY": str(build(Path(scratch), sanitize=True)),
            "LD_PRELOAD": runtime(),
            "ASAN_OPTIONS": "detect_leaks=0:verify_asan_link_order=0",
            "UBSAN_OPTIONS": "print_stacktrace=1",
        }
        arguments = sys.argv[1:] or [TESTS, "-p", "no:xdist", "-m", "not slow", "-s"]
        sys.exit(subprocess.run([sys.executable, "-m", "pytest", *arguments], env=environment, check=False).returncode)


if __name__ == "__main__":
    main()
