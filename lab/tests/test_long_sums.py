"""Sums over long sequences lose no digits: outputs, gradients, and states that are carried from token to token."""

import dataclasses

import pytest
import torch
from torch import Tensor

from lln import LLNState, lln_attention
from lln_lab.bench import long_sums
from tests.ops.subjects import every_backend_name as every_backend
from tests.ops.test_lln_contract import either_direction

# What a tile's own sum may be off by, a chain of up to 128 terms, whatever the length of the sequence.
TEN_LAST_PLACES = 10 * torch.finfo(torch.float32).eps


@every_backend
@either_direction
def test_fifty_thousand_equal_tokens_give_their_value(backend: str, causal: bool) -> None:
    q, k, v = (torch.full((1, 1, 50_000, 4), x) for x in (0.3, 0.0, 0.1))
    out = lln_attention(q, k, v, 1.0, 1.0, is_causal=causal, backend=backend)
    assert float((out - v).abs().max()) / 0.1 <= TEN_LAST_PLACES


@every_backend
def test_threads_that_share_a_long_sequence_lose_no_digits_either(backend: str) -> None:
    q, k, v = (torch.full((1, 1, 50_000, 4), x) for x in (0.3, 0.0, 0.1))
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        out = lln_attention(q, k, v, 1.0, 1.0, is_causal=True, backend=backend)
    finally:
        torch.set_num_threads(before)
    assert float((out - v).abs().max()) / 0.1 <= TEN_LAST_PLACES


@either_direction
@pytest.mark.parametrize("kind", long_sums.KINDS)
def test_errors_do_not_grow_with_the_length(kind: str, causal: bool) -> None:
    assert_no_growth(long_sums.Plan(lengths=(1_000, 30_000), plain_longest=0, tokens=3_000), kind, causal)


@pytest.mark.slow
@either_direction
@pytest.mark.parametrize("kind", long_sums.KINDS)
def test_errors_at_a_million_tokens_are_those_at_a_thousand(kind: str, causal: bool) -> None:
    assert_no_growth(long_sums.Plan(lengths=(1_000, 1_000_000), plain_longest=0), kind, causal)


def assert_no_growth(plan: long_sums.Plan, kind: str, causal: bool) -> None:
    """At most twice the error, of outputs over max|v| and of gradients over their root mean square, or ten last places."""
    short, long = ({row["backend"]: row for row in long_sums.measure(plan, kind, n, causal)} for n in plan.lengths)
    for backend, row in long.items():
        pairs = {"output": (short[backend]["output"], row["output"])}
        pairs |= {name: (short[backend]["gradients"][name], row["gradients"][name]) for name in long_sums.NAMES}
        for name, (first, last) in pairs.items():
            assert last <= 2 * max(first, TEN_LAST_PLACES), f"{backend}, {name}: {first:.2g}, then {last:.2g}"


@every_backend
@pytest.mark.parametrize("rise", [0.0, 1e-3], ids=["equal keys", "rising keys"])
def test_tokens_decoded_one_by_one_lose_no_digits(backend: str, rise: float) -> None:
    """After 100,000 others. Rising keys scale the state at every token."""
    tokens = [torch.full((1, 1, 1_000, 4), x) for x in (0.3, 0.0, 0.1)]
    tokens[1] += rise * torch.arange(1_000)[:, None]
    state, rows = many_times(first_state(tokens, backend), 100_000), []
    for i in range(1, 1_000):
        out, state = attend([x[:, :, i : i + 1] for x in tokens], state, backend)
        rows.append(out)
    exact = [x.double() for x in tokens]
    true, _ = attend([x[:, :, 1:] for x in exact], many_times(first_state(exact, "chunked"), 100_000), "chunked")
    assert float((torch.cat(rows, dim=2).double() - true).abs().max()) / 0.1 <= TEN_LAST_PLACES


def attend(tokens: list[Tensor], state: LLNState | None, backend: str) -> tuple[Tensor, LLNState]:
    return lln_attention(*tokens, 1.0, 1.0, is_causal=True, state=state, return_state=True, backend=backend)


def first_state(tokens: list[Tensor], backend: str) -> LLNState:
    return attend([x[:, :, :1] for x in tokens], None, backend)[1]


def many_times(state: LLNState, times: int) -> LLNState:
    """As if each of its tokens had come so often."""
    return dataclasses.replace(state, summed=state.summed * times, normaliser=state.normaliser * times)


@every_backend
def test_after_sixteen_million_tokens_one_more_still_counts(backend: str) -> None:
    """2^24 + 1 is not a float32."""
    token = [torch.zeros(1, 1, 1, 4), torch.zeros(1, 1, 1, 4), torch.ones(1, 1, 1, 4)]
    _, after = attend(token, many_times(first_state(token, backend), 2**24), backend)
    assert (after.normaliser.double() == 2**24 + 1).all() and (after.summed.double() == 2**24 + 1).all()


@every_backend
def test_a_state_saved_with_float32_sums_is_gone_on_from(backend: str) -> None:
    tokens = [torch.randn(1, 1, 30, 4) for _ in range(3)]
    state = attend(tokens, None, backend)[1]
    saved = state.state_dict()
    saved |= {name: saved[name].float() for name in ("summed", "normaliser")}
    (out, after), (expected, _) = (attend(tokens, s, backend) for s in (LLNState.load(saved), state))
    assert torch.equal(out, expected) and after.summed.dtype == torch.float64


@every_backend
def test_what_all_keys_share_is_not_rounded_the_same_way_in_each(backend: str) -> None:
    """db = g (dS v + dz): were dz added to numbers on one grid, its rounding would be the same error in every key."""
    x = long_sums.draw("Gaussian", 262_144, causal=False, dim=16)
    (_, _, k, *_), (_, _, true, *_) = (
        long_sums.results(long_sums.METHODS[name], y) for name, y in ((backend, x), ("chunked", x.double()))
    )
    b = x.tensors[1].double() * x.tensors[4].double()
    errors = (k.double() - true) * (b.amax(dim=2, keepdim=True) - b).exp()
    shared = errors.mean(dim=2).square().mean() / errors.square().mean()
    assert float(shared.sqrt()) <= 0.02
