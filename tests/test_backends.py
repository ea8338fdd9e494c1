"""Which backend is used, and what is said when the fast one is missing."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from lln import lln_attention
from lln.ops.lln import Operands, attention

CALL_TWICE = (
    "import torch, lln; x = torch.randn(1, 1, 4, 4); [print(lln.lln_attention(x, x, x).sum().item()) for _ in '12']"
)


def test_a_missing_kernel_is_noticed_once_and_the_result_is_the_same(tmp_path: Path) -> None:
    environment = os.environ | {"LLN_NATIVE_LIBRARY": str(tmp_path / "absent.so")}
    done = subprocess.run(
        [sys.executable, "-c", CALL_TWICE], capture_output=True, text=True, check=True, env=environment
    )
    assert done.stderr.count("uses a slower backend: the native kernel is not compiled") == 1
    assert len(done.stdout.split()) == 2


@pytest.mark.skipif(
    attention.backends["native"].unavailable() is not None, reason="the native kernel is not built here"
)
def test_cpu_tensors_take_the_native_kernel_and_float64_the_chunked_backend() -> None:
    x = torch.randn(1, 1, 4, 4)
    scales = torch.ones(1, 1, 4)
    assert attention.backends.pick("auto", Operands(x, x, x, scales, scales)).name == "native"
    double = (x.double(),) * 3 + (scales.double(),) * 2
    assert attention.backends.pick("auto", Operands(*double)).name == "chunked"
    with pytest.raises(ValueError, match="'native' cannot be used here: .* q is torch.float64"):
        lln_attention(x.double(), x.double(), x.double(), backend="native")
