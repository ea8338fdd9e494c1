"""Cost of near-far attention by count: linear in the length, and nothing of the size of a block's state is kept per block."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from lln.near_far import near_far_attention
from lln.zoo.cost import Cost, cost_of, saved_bytes

LENGTHS = (1024, 2048, 4096)
causality = pytest.mark.parametrize("causal", [False, True], ids=["bidirectional", "causal"])
reaches = pytest.mark.parametrize("reach", [{}, {"neighbours": 1, "first_tokens": 4}], ids=["block", "wide"])


class Attention(nn.Module):
    def __init__(self, **options: object) -> None:
        super().__init__()
        self.options = options

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (x * scale for scale in (1.0, 0.5, 2.0))
        return near_far_attention(q, k, v, 1.0, 1.0, **self.options)  # type: ignore[arg-type, call-overload, no-any-return]


def assert_linear(measure: Callable[[int], int]) -> None:
    """Twice as many more tokens cost twice as much more; what does not depend on the length drops out."""
    short, middle, long = (measure(n) for n in LENGTHS)
    assert long - middle <= 2.001 * (middle - short), (short, middle, long)


@causality
@reaches
def test_flops_numbers_written_and_bytes_saved_grow_linearly(causal: bool, reach: dict[str, int]) -> None:
    module = Attention(block_size=128, is_causal=causal, backend="chunked", **reach)  # torch counts what torch computes
    found: dict[int, Cost] = {n: cost_of(module, torch.randn(1, 1, n, 8)) for n in LENGTHS}
    assert_linear(lambda n: found[n].flops)
    assert_linear(lambda n: found[n].written)
    assert_linear(lambda n: found[n].saved)


@causality
@pytest.mark.parametrize("backend", ["auto", "chunked"])
def test_states_of_blocks_are_not_kept_for_the_backward_pass(causal: bool, backend: str) -> None:
    """A state of D = 64 is 8,192 numbers, and a block of 16 has 1,024 of k: kept, they would be eight times k in float64."""
    length, dim = 4096, 64
    saved = saved_bytes(Attention(block_size=16, is_causal=causal, backend=backend), torch.randn(1, 1, length, dim))
    inputs = 3 * 4 * length * dim  # q, k and v in float32
    states = length // 16 * 2 * dim * dim * 8
    assert saved < inputs + states / 4


def test_the_count_sees_a_matrix_of_all_pairs() -> None:
    def flops(length: int) -> int:
        q = torch.randn(1, 1, length, 8)
        with FlopCounterMode(display=False) as counter:
            near_far_attention(q, q, q, 1.0, 1.0, block_size=16, backend="oracle")
        return counter.get_total_flops()

    short, middle, long = (flops(n) for n in (64, 128, 256))
    assert long - middle > 3 * (middle - short)
