"""A card whose kernels cannot run here: plain torch computes, and says why once. The tensors hold nothing."""

import importlib
import warnings

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from lln.ops import backends
from lln.ops.gpu import environment
from lln.ops.lln import Operands, attention
from lln.ops.near_far.op import Operands as NearFarOperands

pytestmark = pytest.mark.skipif(environment.unavailable() is None, reason="the kernels can run here")


def test_without_kernels_a_card_has_plain_torch_and_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends, "_noticed", set())
    with FakeTensorMode():
        q = torch.empty(1, 2, 40, 16, device="cuda")
        scale = torch.empty(1, 2, 16, device="cuda")
        x = Operands(q, q, q, scale, scale)
        with pytest.warns(
            UserWarning, match="on cuda uses a slower backend: (there is no GPU|triton is not installed)"
        ):
            assert attention.backends.pick("auto", x).name == "chunked"
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert attention.backends.pick("auto", x).name == "chunked"


@pytest.mark.parametrize("size", [256, 257])
def test_heads_that_are_too_large_for_the_kernels_are_refused_in_words(size: int) -> None:
    near_far = importlib.import_module("lln.ops.near_far.triton")
    with FakeTensorMode():
        q, scale, weights = (torch.empty(shape, device="cuda") for shape in ((1, 2, 40, size), (1, 2, size), (1, 2, 4)))
        x = NearFarOperands(q, q, q, scale, scale, None, weights, None, None, 16, 0, 0, 1.0, False)
        told = near_far._refuses(x)
    assert told is None if size == 256 else "head sizes up to 256" in told and "these are 257 and 257" in told
