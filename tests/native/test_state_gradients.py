"""States as operands: gradients through the state that a call starts from and through the one it leaves.

The truth is the plain formula in float64, by autograd. With C a shift per feature that is above every exponent,

    S_i = e^(c0 - C) S0 + sum_j e^(b_j - C) v_j^T,    z_i likewise,    out_i = e^(a_i + C) S_i / e^(a_i + C) z_i

over all keys j, or over j <= i. The state left is S and z after the last key, relative to their own maximum c instead of C.
"""

from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from lln.ops.lln import Operands, Results, State, native
from tests.ops.test_lln_contract import either_direction

NAMES = ("q", "k", "v", "alpha", "beta", "bias", "start_summed", "start_normaliser")


def backward(
    grad: Tensor, results: Results, x: Operands, dsummed: Tensor | None = None, dnormaliser: Tensor | None = None
) -> list[Tensor | None]:
    found = native.backward({"out": grad, "summed": dsummed, "normaliser": dnormaliser}, results, x, set(NAMES))
    return [found.get(name) for name in NAMES]


@dataclass
class Case:
    x: Operands
    grad: Tensor
    dsummed: Tensor
    dnormaliser: Tensor

    def found(self) -> tuple[list[Tensor], list[Tensor]]:
        """Output and final sums, and the gradients by their names."""
        results = native.forward(self.x)
        return [*results], [*backward(self.grad, results, self.x, self.dsummed, self.dnormaliser)]

    def true(self) -> tuple[list[Tensor], list[Tensor]]:
        x = self.x
        start = x.start
        tensors = (x.q, x.k, x.v, x.alpha, x.beta, x.bias, start.summed, start.normaliser)
        leaves = [t.detach().double().requires_grad_() for t in tensors]
        results = plain(*leaves, start.maximum.double(), x.key_mask, x.is_causal)
        upstream = (self.grad, self.dsummed, self.dnormaliser)
        loss = sum((r * g.double()).sum() for r, g in zip((results[0], *results[2:]), upstream, strict=True))
        return [r.detach() for r in results], list(torch.autograd.grad(loss, leaves))


def plain(q, k, v, alpha, beta, bias, start_summed, start_normaliser, start_maximum, key_mask, causal) -> list[Tensor]:
    """out, c, S, z"""
    groups = q.shape[1] // k.shape[1]
    b = beta[:, :, None] * k
    if key_mask is not None:
        b = b.masked_fill(~key_mask[:, None, :, None], -torch.inf)
    c = torch.maximum(start_maximum, b.amax(dim=2)).detach()  # (B, Hk, D)
    shift = torch.where(c.isfinite(), c, 0.0)
    decay, g = (start_maximum - shift).exp(), (b - shift[:, :, None]).exp()
    terms = g[..., None] * v[:, :, :, None]  # (B, Hk, N, D, Dv)
    over = (lambda t: t.cumsum(dim=2)) if causal else (lambda t: t.sum(dim=2, keepdim=True))
    summed = (decay[..., None] * start_summed)[:, :, None] + over(terms)
    normaliser = (decay * start_normaliser)[:, :, None] + over(g)
    exponent = alpha[:, :, None] * q + bias[:, :, None] + shift.repeat_interleave(groups, dim=1)[:, :, None]
    f = (exponent - exponent.amax(dim=3, keepdim=True).detach()).exp()
    by_query = [t.repeat_interleave(groups, dim=1) for t in (summed, normaliser)]
    numerator = (f[..., None] * by_query[0]).sum(dim=3)
    denominator = (f * by_query[1]).sum(dim=3, keepdim=True)
    out = numerator / torch.where(denominator == 0, 1.0, denominator)
    return [out, c, summed[:, :, -1], normaliser[:, :, -1]]


def case(length: int, causal: bool, *, queries: int | None = None, sigma: float = 1.0, mask: str = "none") -> Case:
    torch.manual_seed(length)
    batch, heads, groups, dim, value_dim = 2, 2, 2, 20, 12
    queries = length if queries is None else queries
    before = torch.randn(batch, heads, 30, dim) * sigma
    scale = 1 + 0.3 * torch.randn(batch, heads, dim)
    values = torch.randn(batch, heads, 30, value_dim)
    start = native.forward(Operands(before, before, values, scale, scale)).state
    if mask == "no start":
        start = State(*(t.clone() for t in start))
        start.maximum[0], start.summed[0], start.normaliser[0] = -torch.inf, 0, 0
    counts = None
    if mask in ("holes", "no start"):
        counts = torch.rand(batch, length) < 0.5
    elif mask == "no key":
        counts = torch.zeros(batch, length, dtype=torch.bool)
    elif mask == "neither":
        counts, start = torch.zeros(batch, length, dtype=torch.bool), State.without_keys(scale, value_dim)
    x = Operands(
        torch.randn(batch, queries, heads * groups, dim).transpose(1, 2) * sigma,
        torch.randn(batch, heads, length, dim) * sigma,
        torch.randn(batch, heads, length, value_dim),
        1 + 0.3 * torch.randn(batch, heads * groups, dim),
        scale,
        torch.randn(batch, heads * groups, dim),
        counts,
        is_causal=causal,
    ).starting_from(start)
    return Case(
        x,
        torch.randn(batch, heads * groups, queries, value_dim),
        torch.randn_like(start.summed),
        torch.randn_like(start.normaliser),
    )


def check(given: Case) -> None:
    for found, true in zip(given.found(), given.true(), strict=True):
        for name, one, other in zip(NAMES, found, true, strict=False):
            assert_near(one, other, name)


def assert_near(found: Tensor, true: Tensor, name: str) -> None:
    finite = true.isfinite()
    assert torch.equal(finite, found.isfinite()), name
    true, found = (torch.where(finite, x.double(), 0.0) for x in (true, found))
    torch.testing.assert_close(found, true, atol=1e-5 * float(true.abs().max()), rtol=0, msg=lambda m: f"{name}: {m}")


@either_direction
@pytest.mark.parametrize("length", [1, 50, 700])
def test_gradients_through_states_are_those_of_the_formula(isa: str, causal: bool, length: int) -> None:
    check(case(length, causal))


@either_direction
@pytest.mark.parametrize("mask", ["holes", "no start", "no key", "neither"])
def test_gradients_through_states_with_padding_and_without_keys(isa: str, causal: bool, mask: str) -> None:
    check(case(100, causal, mask=mask))


@either_direction
@pytest.mark.parametrize("number", [3, 8])
def test_gradients_through_states_shared_out_between_threads(threads: None, causal: bool, number: int) -> None:
    torch.set_num_threads(number)
    given = case(1300, causal, mask="holes")
    check(given)


@either_direction
def test_large_exponents(isa: str, causal: bool) -> None:
    check(case(150, causal, sigma=6.0))


def test_any_number_of_queries(isa: str) -> None:
    check(case(130, causal=False, queries=7))


@either_direction
def test_one_gradient_of_two_is_enough(causal: bool) -> None:
    given = case(60, causal)
    results = native.forward(given.x)
    one = backward(given.grad, results, given.x, given.dsummed)
    both = backward(given.grad, results, given.x, given.dsummed, torch.zeros_like(given.dnormaliser))
    assert all(torch.equal(a, b) for a, b in zip(one, both, strict=True))


@either_direction
def test_without_a_start_there_is_no_gradient_of_it(causal: bool) -> None:
    given = case(60, causal)
    x = given.x.starting_from(None)
    assert backward(given.grad, native.forward(x), x)[6:] == [None, None]


@either_direction
@pytest.mark.parametrize("cut", [1, 49, 650])
def test_a_sequence_in_two_pieces_has_the_gradients_of_the_whole(isa: str, causal: bool, cut: int) -> None:
    """Keys are cut in two; queries, where not causal, all come with the second piece."""
    given = case(700, causal)
    whole = given.x.starting_from(None)
    expected = backward(given.grad, native.forward(whole), whole, given.dsummed, given.dnormaliser)

    def piece(at: slice) -> Operands:
        q = whole.q[:, :, at] if causal else whole.q
        return whole._replace(q=q, k=whole.k[:, :, at], v=whole.v[:, :, at])

    first = piece(slice(0, cut))
    middle = native.forward(first)
    second = piece(slice(cut, None)).starting_from(middle.state)
    end = native.forward(second)
    grads = (given.grad[:, :, :cut], given.grad[:, :, cut:]) if causal else (torch.zeros_like(given.grad), given.grad)
    *of_2, dsummed, dnormaliser = backward(grads[1], end, second, given.dsummed, given.dnormaliser)
    *of_1, _, _ = backward(grads[0], middle, first, dsummed, dnormaliser)
    for i, name in enumerate(NAMES[:6]):
        if name in ("k", "v") or (name == "q" and causal):
            found = torch.cat([of_1[i], of_2[i]], dim=2)
        elif name == "q":
            found = of_2[i]
        else:
            found = of_1[i] + of_2[i]
        assert_near(found, expected[i].double(), name)


def test_gradients_of_another_form_are_refused() -> None:
    given = case(10, causal=True)
    with pytest.raises(ValueError, match=r"dsummed must have shape \(2, 2, 20, 12\), got \(2, 2, 12, 20\)"):
        replace(given, dsummed=given.dsummed.mT).found()
    with pytest.raises(ValueError, match="dnormaliser must have shape"):
        replace(given, dnormaliser=given.dnormaliser[:1]).found()
