"""Every instruction set against the oracle, and the arithmetic it is made of."""

import pytest
import torch

from lln.ops.lln import Operands, native
from tests.ops.cases import Case, build
from tests.ops.subjects import Subject
from tests.ops.test_lln_contract import SPIKES, check_inputs, either_direction, spiked, stress_case

STARTS = ("start_maximum", "start_summed", "start_normaliser")
NATIVE = Subject("attention", "native", "cpu")
SHAPES = {
    "one of everything": (1, 1, 1, 1, 1, 1, 1),
    "tuned size 32": (1, 1, 1, 70, 70, 32, 32),
    "tuned size 64": (1, 1, 1, 49, 49, 64, 64),
    "tuned size 128": (1, 1, 1, 30, 30, 128, 128),
    "odd sizes": (1, 1, 1, 49, 49, 33, 17),
    "values wider than keys": (1, 1, 1, 47, 47, 7, 70),
    "grouped heads": (2, 1, 2, 50, 50, 24, 8),
}


def case(name: str, causal: bool, **changes: object) -> Case:
    batch, key_heads, groups, queries, keys, dim, value_dim = SHAPES[name]
    drawn = dict(dtype=torch.float32, sigma=1.0, mask="none", layout="heads inside", packed=False, biased=True, seed=5)
    return Case(
        batch=batch, key_heads=key_heads, groups=groups, queries=queries, keys=keys, dim=dim, value_dim=value_dim,
        causal=causal, **{**drawn, **changes},
    )  # fmt: skip


@either_direction
@pytest.mark.parametrize("shape", SHAPES)
def test_every_instruction_set_agrees_with_the_oracle(isa: str, shape: str, causal: bool) -> None:
    check_inputs(NATIVE, build(case(shape, causal)))


@either_direction
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("layout", ["contiguous", "sliced", "reversed features"])
def test_half_precision_in_any_layout_agrees_with_the_oracle(
    isa: str, dtype: torch.dtype, layout: str, causal: bool
) -> None:
    check_inputs(NATIVE, build(case("odd sizes", causal, dtype=dtype, layout=layout, mask="holes")))


@either_direction
@pytest.mark.parametrize("kind", SPIKES)
def test_every_instruction_set_takes_outliers(isa: str, kind: str, causal: bool) -> None:
    check_inputs(NATIVE, spiked(build(stress_case(causal, batch=1, key_heads=1, queries=80, keys=80, dim=16)), kind))


@either_direction
@pytest.mark.parametrize("sigma", [1e-3, 64.0])
def test_every_instruction_set_takes_any_scale(isa: str, sigma: float, causal: bool) -> None:
    check_inputs(NATIVE, build(stress_case(causal, sigma, batch=1, key_heads=1, queries=80, keys=80, dim=16)))


def test_the_exponential_is_right_to_the_last_places(isa: str) -> None:
    x = torch.cat([torch.linspace(0, 86.4, 20_001), torch.tensor([87.5, 100.0, 1e4, 3e38])])
    k = torch.stack([torch.zeros_like(x), -x], dim=1)[:, None, :, None]  # (B, 1, 2, 1)
    v = torch.tensor([0.0, 1.0])[None, None, :, None].expand_as(k)  # so that S is exp(-x)
    ones = torch.ones(len(x), 1, 1)
    found = native.forward(Operands(k, k, v, ones, ones)).summed.flatten()
    true = torch.exp(-x.double())
    regular = x < 86.45
    ulp = 2.0 ** (torch.floor(torch.log2(true[regular])) - 23)
    allowed = 1.5 + x[regular] / 20  # rounding x to a float is worth up to x / 2
    assert ((found[regular].double() - true[regular]).abs() / ulp <= allowed).all()
    assert (found[~regular] == 0).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_every_finite_half_precision_number_survives_the_way_in_and_out(isa: str, dtype: torch.dtype) -> None:
    every = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)
    one, scale = torch.zeros(1, 1, 1, 1, dtype=dtype), torch.ones(1, 1, 1)
    out = native.forward(Operands(one, one, every[None, None, None], scale, scale))[0]
    finite = every.isfinite()
    assert torch.equal(out.flatten()[finite], every[finite])
    assert not out.flatten()[~finite].isfinite().any()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_results_are_rounded_as_torch_rounds(isa: str, dtype: torch.dtype) -> None:
    numbers = torch.cat([torch.randn(500), torch.randn(500) * 1e-6, torch.tensor([65504.0, 65519.0, 6e-8, 2.9e-8])])
    start = (torch.zeros(1, 1, 1), numbers[None, None, None], torch.ones(1, 1, 1))
    nothing = torch.zeros(1, 1, 1, 1, dtype=dtype)
    no_key = torch.zeros(1, 1, dtype=torch.bool)
    scale = torch.ones(1, 1, 1)
    v = numbers.to(dtype)[None, None, None]
    begin = dict(zip(STARTS, start, strict=True))
    out = native.forward(Operands(nothing, nothing, v, scale, scale, key_mask=no_key, **begin)).out
    assert torch.equal(out.flatten(), numbers.to(dtype))
