"""Compile the kernel: one shared library with a plain C interface, in seconds, with nothing but a C++ compiler.

It uses neither torch nor Python headers, so that one library serves every version of both. `setup.py` runs this file by its
path before the package can be imported, so it may import nothing but the standard library.

    python -m lln.ops.native.build            build in place
    python -m lln.ops.native.build --sanitize with AddressSanitizer and UndefinedBehaviorSanitizer
    python -m lln.ops.native.build --for win_amd64 --to DIR    for another platform, by the compiler of `pip install ziglang`
"""

import argparse
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
SOURCES = HERE / "csrc"

# Platforms to build for from any other, by the names that wheels have for them, and what the cross-compiler calls them.
TARGETS = {
    "manylinux_2_17_x86_64": "x86_64-linux-gnu.2.17",
    "manylinux_2_17_aarch64": "aarch64-linux-gnu.2.17",
    "macosx_11_0_arm64": "aarch64-macos.11.0",
    "win_amd64": "x86_64-windows-gnu",
}

# -ffp-contract=fast lets a*b+c become one fused operation; nothing else may reorder or approximate arithmetic.
FLAGS = [
    "-std=c++17",
    "-O3",
    "-fPIC",
    "-fvisibility=hidden",
    "-ffp-contract=fast",
    "-fno-math-errno",
    "-fno-trapping-math",
]
WARNINGS = ["-Wall", "-Wextra", "-Wno-psabi", "-Wno-unknown-pragmas", "-Wno-unused-function"]
# Of wheels: the C++ runtime is inside and ours alone, since ours could not catch what torch's throws; no path of the builder's.
LINK = {"manylinux": ["-Wl,-Bsymbolic"], "macosx": ["-Wl,-install_name,@rpath/_kernel.dylib"]}
SANITIZE = ["-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-fno-omit-frame-pointer", "-g", "-O1"]

PORTABLE: dict[str, list[str]] = {"portable": []}
NEON: dict[str, list[str]] = {"neon": []}  # what every 64-bit ARM has
X86 = {
    **PORTABLE,
    "avx2": ["-mavx2", "-mfma", "-mf16c"],
    "avx512": ["-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mfma", "-mf16c"],
}


class BuildError(RuntimeError):
    """The library could not be compiled; the message says why."""


def compiler() -> list[str]:
    """The C++ compiler: $CXX, or the first of c++, g++ and clang++ on the path."""
    given = os.environ.get("CXX")
    if given:
        return shlex.split(given)
    found = next((name for name in ("c++", "g++", "clang++") if shutil.which(name)), None)
    if found is None:
        raise BuildError("no C++ compiler found: set CXX, or install g++ or clang++")
    return [found]


def library_name(platform_tag: str | None = None) -> str:
    """What the library is called on that platform, or on this one: as `library.py` looks for it."""
    system = platform_tag or sys.platform
    return "_kernel" + (
        ".dll" if system.startswith("win") else ".dylib" if system.startswith(("mac", "darwin")) else ".so"
    )


def build(target_directory: Path, sanitize: bool = False, platform_tag: str | None = None) -> Path:
    """Compile and link the library into `target_directory`, whole or not at all, and return its path."""
    if platform_tag not in (None, *TARGETS):
        raise BuildError(f"cannot build for {platform_tag!r}, only for {', '.join(TARGETS)}")
    if platform_tag is None and platform.system() not in ("Linux", "Darwin"):
        raise BuildError(f"the native backend builds on Linux and macOS, not on {platform.system()}")
    if platform_tag is None:
        command, link, machine = compiler(), ["-pthread"], platform.machine().lower()
    else:
        command = [sys.executable, "-m", "ziglang", "c++", "-target", TARGETS[platform_tag]]
        link, machine = ["-s", *(LINK.get(platform_tag.split("_")[0], []))], platform_tag
    flags = FLAGS + WARNINGS + (SANITIZE if sanitize else [])
    instruction_sets = (
        X86 if machine.endswith(("x86_64", "amd64")) else NEON if machine.endswith(("aarch64", "arm64")) else PORTABLE
    )
    library = library_name(platform_tag)
    target_directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        jobs = {
            f"kernel_{name}": ["kernel.cpp", f"-DLLN_ISA={name}", *extra] for name, extra in instruction_sets.items()
        }
        jobs |= {name: [f"{name}.cpp"] for name in ("pool", "pages", "checks", "near_far_checks", "dispatch")}
        objects = [Path(scratch) / f"{name}.o" for name in jobs]

        def compile_one(job: tuple[Path, list[str]]) -> None:
            output, (source, *extra) = job
            _run([*command, *flags, *extra, "-c", str(SOURCES / source), "-o", str(output)])

        with ThreadPoolExecutor(os.cpu_count() or 1) as workers:
            list(workers.map(compile_one, zip(objects, jobs.values(), strict=True)))
        linked = Path(scratch) / library
        _run([*command, *flags, "-shared", *map(str, objects), "-o", str(linked), *link])
        target = target_directory / library
        aside = target.with_name(library + ".part")
        shutil.copy(linked, aside)
        aside.replace(target)  # a process that has the old library open keeps it
    return target


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise BuildError(f"cannot run the C++ compiler {command[0]!r}: {error}") from error
    if done.returncode:
        raise BuildError(f"{' '.join(command)}\nfailed:\n{done.stderr.strip()}")


def main() -> None:
    """Build the library where the package looks for it, or elsewhere."""
    parser = argparse.ArgumentParser(description="Compile the native CPU kernel.")
    parser.add_argument("--sanitize", action="store_true", help="with AddressSanitizer and UndefinedBehaviorSanitizer")
    parser.add_argument("--to", type=Path, default=HERE, help="directory for the library (default: inside the package)")
    parser.add_argument("--for", dest="platform", choices=TARGETS, help="another platform, by its name in wheels")
    options = parser.parse_args()
    try:
        print(build(options.to, options.sanitize, options.platform))
    except BuildError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
