"""The build of the native kernel; everything else about the package is in pyproject.toml.

The kernel is a plain shared library, tied to no version of Python or torch, so the wheel is py3-none-<platform>. Where it
cannot be compiled the package installs all the same, and `lln info` says that the slower backend is in use.

LLN_WHEEL_PLATFORM=win_amd64, say, makes a wheel for another platform (`tools/wheels.py`); then a kernel that does not
compile is an error.
"""

import os
import runpy
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

NATIVE = "lln.ops.native"
PLATFORM = os.environ.get("LLN_WHEEL_PLATFORM")
recipe = runpy.run_path(str(Path(__file__).parent / "src" / Path(*NATIVE.split(".")) / "build.py"))


class BuildKernel(build_ext):
    """Compiles the library by the package's own recipe, to where the package looks for it."""

    def get_ext_filename(self, ext_name: str) -> str:
        return str(Path(*ext_name.split(".")).with_name(recipe["library_name"](PLATFORM)))

    def build_extension(self, ext: Extension) -> None:
        try:
            recipe["build"](Path(self.get_ext_fullpath(ext.name)).parent, platform_tag=PLATFORM)
        except recipe["BuildError"] as error:
            if PLATFORM:
                raise SystemExit(f"no wheel for {PLATFORM}: {error}") from error
            self.warn(f"the native CPU kernel was not built, the slower pure PyTorch backend will be used: {error}")


class PlatformWheel(bdist_wheel):
    """One wheel for every Python on a platform."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", PLATFORM or super().get_tag()[2]


setup(
    ext_modules=[Extension(f"{NATIVE}._kernel", sources=[], optional=True)],
    cmdclass={"build_ext": BuildKernel, "bdist_wheel": PlatformWheel},
)
