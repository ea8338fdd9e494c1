"""Wheels for other platforms: what they are checked for, and, where the cross-compiler is installed, a kernel for each."""

import importlib.util
import runpy
import struct
import zipfile
from pathlib import Path

import pytest

from lln.ops.native import build

ROOT = Path(__file__).parents[1]
wheels = runpy.run_path(str(ROOT / "tools/wheels.py"))
ELF_FOR_ARM = b"\x7fELF" + bytes(14) + struct.pack("<H", 183) + b"\0lln_near_far_step\0"


def a_wheel(folder: Path, platform: str, library: str, kernel: bytes) -> Path:
    path = folder / f"lln_attention-0-py3-none-{platform}.whl"
    with zipfile.ZipFile(path, "w") as files:
        files.writestr(f"lln/ops/native/{library}", kernel)
        files.writestr("lln_attention-0.dist-info/WHEEL", f"Tag: py3-none-{platform}\n")
    return path


@pytest.mark.parametrize(
    "platform, library, kernel, complaint",
    [
        ("win_amd64", "_kernel.so", ELF_FOR_ARM, "should have one kernel, _kernel.dll"),
        ("macosx_11_0_arm64", "_kernel.dylib", ELF_FOR_ARM, "another machine"),
        ("manylinux_2_17_x86_64", "_kernel.so", ELF_FOR_ARM, "another machine"),
        ("manylinux_2_17_aarch64", "_kernel.so", ELF_FOR_ARM[:20], "does not export"),
    ],
)
def test_a_wheel_with_the_wrong_kernel_is_refused(
    tmp_path: Path, platform: str, library: str, kernel: bytes, complaint: str
) -> None:
    with pytest.raises(SystemExit, match=complaint):
        wheels["check"](a_wheel(tmp_path, platform, library, kernel), platform)


def test_an_unknown_platform_is_refused_with_those_there_are(tmp_path: Path) -> None:
    with pytest.raises(build.BuildError, match=r"'amiga'.*manylinux_2_17_aarch64.*win_amd64"):
        build.build(tmp_path, platform_tag="amiga")


def test_every_platform_has_a_format() -> None:
    assert set(wheels["FORMATS"]) == set(build.TARGETS)


def test_the_kernel_asks_for_no_runtime_library_of_its_compiler() -> None:
    """The cross-compiler cannot link `__builtin_cpu_supports` into a shared library: cpu.h asks the processor itself."""
    sources = {path.name: path.read_text() for path in build.SOURCES.iterdir()}
    assert sources and not [name for name, text in sources.items() if "__builtin_cpu_supports(" in text]


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("ziglang") is None, reason="ziglang is not installed")
@pytest.mark.parametrize("platform", build.TARGETS)
def test_the_kernel_compiles_for(tmp_path: Path, platform: str) -> None:
    made = build.build(tmp_path, platform_tag=platform)
    assert wheels["format_of"](made.read_bytes()) == wheels["FORMATS"][platform]
