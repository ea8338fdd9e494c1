"""A card whose kernels cannot run here: plain torch computes, and says why once. The tensors hold nothing."""

import warnings

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from lln.ops import backends
from lln.ops.gpu import environment
from lln.ops.lln import Operands, attention

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
