"""Cost grows with the length as each card says, by count: flops, numbers written, bytes saved for the backward pass."""

import functools
import math

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import lln.zoo
from lln.ops.lln import Operands, chunked
from lln.zoo.cost import Cost, cost_of, growth
from tests.zoo.variants import Variant

LENGTHS = (512, 2048)
LIMITS = {"linear": 1.02, "n log n": 1.02 + math.log(math.log(LENGTHS[1]) / math.log(LENGTHS[0])) / math.log(4)}
COUNTED_ELSEWHERE = ("near_far",)  # tests/ops/test_near_far_growth.py: a first stretch is cheaper, so exponents mislead
PARTS = ("flops", "written", "saved")
DIAG = [Variant(name, {"branch": "diag"}) for name in ("transnormer_t1", "transnormer_t2")]
EVERY = [Variant(n, only_causal=not lln.zoo.card(n).bidirectional) for n in lln.zoo.names()] + DIAG


@functools.cache
def cost(name: str, options: tuple[tuple[str, object], ...], length: int, causal: bool) -> Cost:
    torch.manual_seed(0)
    module = lln.zoo.build(name, embed_dim=16, num_heads=1, max_length=length, **dict(options))
    return cost_of(module, torch.randn(1, length, 16), is_causal=causal)


def exponent(variant: Variant, part: str, causal: bool) -> float:
    given = tuple(variant.options.items())
    return growth(lambda n: int(getattr(cost(variant.name, given, n, causal), part)), LENGTHS)


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize(
    "variant", [v for v in EVERY if v.card.growth != "quadratic" and v.name not in COUNTED_ELSEWHERE], ids=str
)
def test_cost_grows_no_faster_than_claimed(variant: Variant, part: str) -> None:
    for causal in variant.causalities:
        found = exponent(variant, part, causal)
        assert found <= LIMITS[variant.card.growth], f"{part} grow as N^{found:.3f}, causal={causal}"


def test_quadratic_cost_is_seen_by_the_count() -> None:
    assert exponent(Variant("softmax"), "flops", False) > 1.5
    assert exponent(Variant("relu", {"form": "kernel"}), "saved", False) > 1.5
    assert exponent(Variant("relu", {"form": "kernel"}), "written", False) > 1.5


@pytest.mark.parametrize("causal", [False, True])
def test_flops_of_lln_grow_linearly_inside_its_operator(causal: bool) -> None:
    """The counter sees an operator as one step, so its body is counted by itself."""

    def flops(length: int) -> int:
        q, k, v, grad = torch.randn(4, 1, 1, length, 16).unbind(0)
        scale = torch.ones(1, 1, 16)
        operands = Operands(q, k, v, scale, scale, is_causal=causal)
        with FlopCounterMode(display=False) as counter:
            found = chunked.forward(operands)
            chunked.backward({"out": grad, "summed": None, "normaliser": None}, found, operands, set())
        return counter.get_total_flops()

    assert growth(flops, LENGTHS) <= LIMITS["linear"]


def test_saved_bytes_are_those_that_autograd_keeps() -> None:
    """exp keeps its result and nothing else."""

    class Exp(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.exp()

    assert cost_of(Exp(), torch.randn(1, 7, 3)).saved == 4 * 7 * 3
