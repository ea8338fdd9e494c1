"""Make what a release consists of: sources, and a wheel with the kernel inside for every platform, all on this machine.

    python tools/wheels.py [--to dist] [--only PLATFORM ...]

Wheels are made from the unpacked source archive, as whoever installs from it would, without network: only setuptools is
needed, and `ziglang` (the `release` extra), a C++ compiler for all these platforms. Each is then looked at: its tag, its files,
and whether the kernel in it is a library for that platform which exports its functions; `auditwheel` says of Linux's what it
needs of the system.
"""

import argparse
import os
import runpy
import struct
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RECIPE = runpy.run_path(
    str(ROOT / "src/lln/ops/native/build.py")
)  # by its path: importing the package would need torch
TARGETS, library_name = RECIPE["TARGETS"], RECIPE["library_name"]

# How a shared library of the platform begins, with the number of its machine at a place of the format's header.
ELF, MACH, COFF = b"\x7fELF", b"\xcf\xfa\xed\xfe", b"PE\0\0"
FORMATS = {
    "manylinux_2_17_x86_64": (ELF, 62),
    "manylinux_2_17_aarch64": (ELF, 183),
    "macosx_11_0_arm64": (MACH, 0x0100000C),
    "win_amd64": (COFF, 0x8664),
}


def format_of(library: bytes) -> tuple[bytes, int]:
    """The file format of a shared library, by its first bytes, and the machine it is for."""
    if library.startswith(b"MZ"):  # Windows: the header lies where the old one says
        at = struct.unpack_from("<I", library, 0x3C)[0]
        return library[at : at + 4], struct.unpack_from("<H", library, at + 4)[0]
    return library[:4], struct.unpack_from(*(("<H", library, 18) if library.startswith(ELF) else ("<I", library, 4)))[0]


def check(wheel: Path, platform: str) -> None:
    """Raise if the wheel is not what its name says."""
    with zipfile.ZipFile(wheel) as files:
        kernels = [name for name in files.namelist() if "/_kernel." in name]
        if kernels != [f"lln/ops/native/{library_name(platform)}"]:
            raise SystemExit(f"{wheel.name} should have one kernel, {library_name(platform)}, and has {kernels}")
        library = files.read(kernels[0])
        tags = next(files.read(name).decode() for name in files.namelist() if name.endswith(".dist-info/WHEEL"))
    if format_of(library) != FORMATS[platform]:
        raise SystemExit(f"{wheel.name}: the kernel is for another machine: {format_of(library)}")
    if b"lln_near_far_step\0" not in library:
        raise SystemExit(f"{wheel.name}: the kernel does not export its functions")
    if "linux" in platform:
        shown = subprocess.run(
            [sys.executable, "-m", "auditwheel", "show", str(wheel)], capture_output=True, text=True, check=False
        )
        if f'"{platform}"' not in shown.stdout:
            raise SystemExit(f"{wheel.name}: {shown.stdout}{shown.stderr}")
    if f"Tag: py3-none-{platform}\n" not in tags:
        raise SystemExit(f"{wheel.name} has other tags inside than outside: {tags}")


def run_backend(source: Path, call: str, out: Path, **environment: str) -> Path:
    """One call of setuptools' build backend in `source`, in a process of its own; the file it made."""
    code = f"import setuptools.build_meta as backend; print('made', backend.{call})"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=source,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{call} failed:\n{(done.stdout + done.stderr)[-4000:]}")
    return out / done.stdout.split()[-1]


def sources(project: Path, out: Path) -> Path:
    """The project's source archive."""
    return run_backend(project, f"build_sdist({str(out)!r})", out)


def wheel(archive: Path, out: Path, platform: str | None) -> Path:
    """A wheel of an unpacked source archive; without a platform, one for all of them."""
    with tempfile.TemporaryDirectory() as scratch:
        with tarfile.open(archive) as files:
            files.extractall(scratch, filter="data")
        environment = {} if platform is None else {"LLN_WHEEL_PLATFORM": platform}
        return run_backend(next(Path(scratch).iterdir()), f"build_wheel({str(out)!r})", out, **environment)


def main() -> None:
    """Build everything into one folder and say what is in it."""
    parser = argparse.ArgumentParser(description="Build the source archives and wheels of a release.")
    parser.add_argument("--to", type=Path, default=ROOT / "dist", help="folder for them (default: dist)")
    parser.add_argument("--only", nargs="+", choices=TARGETS, default=list(TARGETS), help="platforms (default: all)")
    options = parser.parse_args()
    out = options.to.resolve()
    out.mkdir(parents=True, exist_ok=True)
    library, laboratory = sources(ROOT, out), sources(ROOT / "lab", out)
    made = [library, laboratory, wheel(laboratory, out, None)]
    for platform in options.only:
        made.append(wheel(library, out, platform))
        check(made[-1], platform)
    for path in made:
        print(f"{path.stat().st_size / 1e6:6.2f} MB  {path.name}")


if __name__ == "__main__":
    main()
