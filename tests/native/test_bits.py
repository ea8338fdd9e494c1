"""What must not change a single bit: padding, later keys, the number of threads."""

import dataclasses

import pytest
import torch

from tests.native.helpers import random_call
from tests.ops.test_lln_contract import either_direction

LONG = 1500  # more than two of the stretches that threads share out


def test_the_number_of_threads_changes_no_bit_of_bidirectional_results(isa: str, threads: None) -> None:
    for heads, groups in ((1, 1), (1, 2), (5, 1)):
        call = random_call(LONG, causal=False, heads=heads, groups=groups)
        results = []
        for number in (1, 2, 3, 8):
            torch.set_num_threads(number)
            results.append((*call.forward(), *call.backward()))
        for other in results[1:]:
            assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


@either_direction
def test_the_same_call_gives_the_same_bits(isa: str, threads: None, causal: bool) -> None:
    call = random_call(LONG, causal)
    torch.set_num_threads(2)
    first, second = ((*call.forward(), *call.backward()) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_causal_results_shared_out_between_threads_agree_with_one_thread(isa: str, threads: None) -> None:
    call = random_call(LONG, causal=True, groups=2)
    torch.set_num_threads(1)
    alone = (*call.forward(), *call.backward())
    torch.set_num_threads(3)
    shared = (*call.forward(), *call.backward())
    for a, b in zip(alone, shared, strict=True):
        torch.testing.assert_close(a, b, atol=2e-5 * float(a.abs().max()), rtol=0)


@either_direction
@pytest.mark.parametrize("number", [1, 3])
@pytest.mark.parametrize("length", [577, 1000])
def test_right_padding_of_a_long_sequence_changes_no_bit(
    isa: str, threads: None, causal: bool, number: int, length: int
) -> None:
    torch.set_num_threads(number)
    whole = random_call(LONG, causal)
    padded = dataclasses.replace(whole, key_mask=(torch.arange(LONG) < length)[None])
    out, *state = padded.forward()
    expected, *expected_state = whole.rows(slice(0, length)).forward()
    assert torch.equal(out[:, :, :length], expected)
    assert all(torch.equal(a, b) for a, b in zip(state, expected_state, strict=True))


@pytest.mark.parametrize("number", [1, 3])
@pytest.mark.parametrize("position", [47, 48, 50, 575, 576, 700, 1499])
def test_a_huge_or_infinite_later_key_changes_no_bit_of_an_earlier_row(
    isa: str, threads: None, number: int, position: int
) -> None:
    torch.set_num_threads(number)
    call = random_call(LONG, causal=True)
    before = call.forward()[0]
    call.k[:, :, position] *= 1e4
    assert torch.equal(before[:, :, :position], call.forward()[0][:, :, :position])
    call.v[:, :, position] = torch.inf
    call.k[:, :, position] = torch.nan
    assert torch.equal(before[:, :, :position], call.forward()[0][:, :, :position])


@either_direction
def test_queries_without_a_gradient_may_hold_anything(isa: str, causal: bool) -> None:
    call = random_call(130, causal)
    call.grad[:, :, 60:70] = 0
    clean = call.backward()
    call.q[:, :, 60:70] = torch.nan
    assert all(torch.equal(a, b) for a, b in zip(clean, call.backward(), strict=True))


@either_direction
def test_not_a_number_is_not_hidden(isa: str, causal: bool) -> None:
    call = random_call(130, causal)
    call.q[:, :, 60, 3] = torch.nan
    out = call.forward()[0]
    assert out[:, :, 60].isnan().all() and out[:, :, :60].isfinite().all() and out[:, :, 61:].isfinite().all()
    call = random_call(130, causal)
    call.k[:, :, 60, 3] = torch.nan
    assert call.forward()[0][:, :, 61:].isnan().all()
