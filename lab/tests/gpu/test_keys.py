"""What names a compiled kernel: its source, that of what it calls, and constants; not the line at which it stands."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton")

KERNEL = """
import triton
import triton.language as tl

FACTOR = tl.constexpr({factor})
{above}

@triton.jit
def helper(x):
    return x * {by}

@triton.jit
def kernel(x, out):
    tl.store(out, helper(tl.load(x)) + FACTOR)
"""


def kernel(folder: Path, **changes: Any) -> Any:
    path = folder / f"kernel_{abs(hash(tuple(changes.items())))}.py"
    path.write_text(KERNEL.format(**{"factor": 2, "above": "", "by": "3.0"} | changes))
    spec = importlib.util.spec_from_file_location("toy", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.kernel


def test_a_kernel_is_named_by_all_it_is_made_of_and_not_by_its_place(tmp_path: Path) -> None:
    from lln_lab.gpu.compiling import sources

    named = sources(kernel(tmp_path))
    assert len(named) == 3  # the kernel, its helper, the constant
    assert sources(kernel(tmp_path, above="# a comment\n\n")) == named
    assert sources(kernel(tmp_path, by="4.0")) != named
    assert sources(kernel(tmp_path, factor=5)) != named
