"""Numbers that are not finite stay where they are: out of running statistics, and out of other samples."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lln import LLNAttention, MomentMatcher, lln_attention, lln_diag_attention, match_moments

HEADS, DIM = 2, 8
bad = pytest.mark.parametrize("number", [torch.nan, torch.inf, -torch.inf])


def inputs(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    return torch.randn(3, HEADS, 13, DIM).to(dtype), torch.randn(3, HEADS, 13, DIM).to(dtype)


def assert_unchanged(module: nn.Module, before: dict[str, Any]) -> None:
    for name, value in module.state_dict().items():
        assert torch.equal(value, before[name]), name


@bad
@pytest.mark.parametrize("which", ["q", "k"])
@pytest.mark.parametrize("subtract", [False, True])
@pytest.mark.parametrize("first", [True, False], ids=["first batch", "later batch"])
def test_a_batch_that_is_not_finite_does_not_enter(number: float, which: str, subtract: bool, first: bool) -> None:
    matcher = MomentMatcher(HEADS, DIM, mode="running", subtract_mean_key=subtract)
    if not first:
        matcher(*inputs())
    before = copy.deepcopy(matcher.state_dict())
    q, k = inputs()
    (q if which == "q" else k)[1, 0, 5, 3] = number  # one number of one head
    used = matcher(q, k)
    assert_unchanged(matcher, before)
    assert all(x is None or bool(x.isfinite().all()) for x in used)

    clean = MomentMatcher(HEADS, DIM, mode="running", subtract_mean_key=subtract)
    clean.load_state_dict(before)
    batch = inputs()
    matcher(*batch), clean(*batch)
    assert_unchanged(matcher, clean.state_dict())


def test_a_batch_too_large_for_float32_does_not_enter() -> None:
    matcher = MomentMatcher(HEADS, DIM, mode="running")
    before = copy.deepcopy(matcher.state_dict())
    q, k = inputs(torch.float64)
    matcher(q * 1e25, k)  # finite, but its square is not
    assert_unchanged(matcher, before)


def test_training_goes_on_after_an_overflow_that_the_scaler_skips() -> None:
    layer = LLNAttention(16, 2, causal=True)
    optimiser = torch.optim.SGD(layer.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    for overflow in (False, True, False):
        x = torch.randn(2, 11, 16)
        with torch.autocast("cpu", torch.float16):
            loss = layer(x * 1e6 if overflow else x)[0].float().square().mean()
        optimiser.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimiser)
        scaler.update()
        assert bool(loss.isfinite()) is not overflow
    assert layer.matcher.running is not None and int(layer.matcher.running.batches) == 2
    assert all(bool(value.isfinite().all()) for value in layer.state_dict().values())


def test_queries_of_a_sample_without_keys_do_not_keep_its_batch_out() -> None:
    matcher = MomentMatcher(HEADS, DIM, mode="running")
    q, k = inputs()
    q = q[:, :, :7]
    q[0] = torch.nan
    counts = torch.ones(3, 13, dtype=torch.bool)
    counts[0] = False
    matcher(q, k, counts)
    alone = MomentMatcher(HEADS, DIM, mode="running")
    alone(q[1:], k[1:])
    for name, value in matcher.state_dict().items():
        torch.testing.assert_close(value, alone.state_dict()[name], msg=name)
    assert matcher.running is not None and int(matcher.running.batches) == 1


OPTIONS: list[dict[str, Any]] = [
    {},
    {"target": "variance"},
    {"center_keys": True},
    {"detach": False},
    {"method": "instance"},
]


@bad
@pytest.mark.parametrize("which", ["q", "k"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_matching_of_batch_mates_is_the_same_to_the_bit(
    number: float, which: str, dtype: torch.dtype, options: dict[str, Any]
) -> None:
    q, k = inputs(dtype)
    expected = match_moments(q, k, **options)
    (q if which == "q" else k)[1, 0, 5, 3] = number
    for one, other in zip(match_moments(q, k, **options), expected, strict=True):
        assert torch.equal(one[[0, 2]], other[[0, 2]])


@bad
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_matching_of_other_packed_sequences_is_the_same_to_the_bit(number: float, dtype: torch.dtype) -> None:
    q, k = (x[:1] for x in inputs(dtype))
    boundaries = torch.tensor([0, 4, 9, 13])
    expected = match_moments(q, k, cu_seqlens=boundaries)
    q[0, 0, 5, 3] = number
    for one, other in zip(match_moments(q, k, cu_seqlens=boundaries), expected, strict=True):
        assert torch.equal(one[[0, 2]], other[[0, 2]])


@bad
@pytest.mark.parametrize("which", ["q", "k"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("backend", ["auto", "chunked"])
@pytest.mark.parametrize("attention", [lln_attention, lln_diag_attention], ids=["lln", "lln_diag"])
def test_attention_of_batch_mates_is_the_same_to_the_bit(
    number: float, which: str, dtype: torch.dtype, backend: str, attention: Any
) -> None:
    q, k = inputs(dtype)
    v = torch.randn_like(q)
    expected = attention(q, k, v, backend=backend)
    (q if which == "q" else k)[1, 0, 5, 3] = number
    assert torch.equal(attention(q, k, v, backend=backend)[[0, 2]], expected[[0, 2]])
