"""Going on from a state, and decoding one token at a time."""

import pytest
import torch

from tests.native.helpers import random_call


@pytest.mark.parametrize("cut", [1, 48, 100, 600])
def test_two_pieces_equal_the_whole(isa: str, cut: int) -> None:
    whole = random_call(700, causal=True, heads=2, groups=2)
    out, *state = whole.forward()
    first, *middle = whole.rows(slice(0, cut)).forward()
    second, *end = whole.rows(slice(cut, 700)).forward(tuple(middle))
    torch.testing.assert_close(torch.cat([first, second], dim=2), out, atol=3e-6, rtol=0)
    for a, b in zip(end, state, strict=True):
        torch.testing.assert_close(a, b, atol=1e-5 * float(b.abs().max()), rtol=0)


def test_decoding_token_by_token_equals_the_whole(isa: str) -> None:
    whole = random_call(60, causal=True, heads=2, groups=2)
    state: tuple[torch.Tensor, ...] = ()
    rows = []
    for i in range(60):
        out, *state_now = whole.rows(slice(i, i + 1)).forward(state)
        state = tuple(state_now)
        rows.append(out)
    torch.testing.assert_close(torch.cat(rows, dim=2), whole.forward()[0], atol=3e-6, rtol=0)


def test_a_state_is_relative_to_its_own_maximum(isa: str) -> None:
    for causal in (False, True):
        call = random_call(200, causal)
        _, maximum, _, normaliser = call.forward()
        exponents = call.beta[:, :, None] * call.k
        assert torch.equal(maximum, exponents.amax(dim=2))
        expected = (exponents.double() - maximum[:, :, None]).exp().sum(dim=2)
        torch.testing.assert_close(normaliser.double(), expected, rtol=1e-5, atol=0)


def test_a_start_without_keys_is_no_start(isa: str) -> None:
    call = random_call(70, causal=True)
    empty = torch.full((1, 1, 16), -torch.inf), torch.zeros(1, 1, 16, 16), torch.zeros(1, 1, 16)
    for a, b in zip(call.forward(), call.forward(empty), strict=True):
        assert torch.equal(a, b)
