"""Large results are asked for in huge pages."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from lln.ops.native.call import LARGE_RESULT
from tests.native.helpers import random_call

MAPPINGS = Path("/proc/self/smaps")
HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")

pytestmark = pytest.mark.skipif(
    not (MAPPINGS.exists() and HUGE_PAGES.exists()), reason="no huge pages to ask for on this system"
)


def asks_for_huge_pages(x: Tensor) -> bool:
    """Whether the mapping that holds the middle of x has the flag that the advice sets."""
    middle, inside = x.data_ptr() + x.nbytes // 2, False
    for line in MAPPINGS.read_text().splitlines():
        name, *rest = line.split()
        if "-" in name and not name.endswith(":"):
            start, end = (int(part, 16) for part in name.split("-"))
            inside = start <= middle < end
        elif inside and name == "VmFlags:":
            return "hg" in rest
    raise AssertionError("the tensor is in no mapping")


@pytest.mark.parametrize("causal", [False, True])
def test_a_large_output_and_its_gradients_ask_for_huge_pages(causal: bool) -> None:
    length = LARGE_RESULT // (4 * 64) + 1000
    call = random_call(length, causal, dim=64, value_dim=64)
    results = [call.forward()[0], *call.backward()[:3]]
    assert all(asks_for_huge_pages(x) for x in results)
    assert not asks_for_huge_pages(torch.full((LARGE_RESULT * 3,), 1.0))  # a mapping of its own that nobody asked for
