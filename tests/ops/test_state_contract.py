"""A starting state and the final state: what they hold, and gradients through both, against the oracle."""

import pytest
import torch
from torch import Tensor

from lln.ops.lln import Operands, attention
from tests.ops.subjects import Subject, compute, subjects

# The C++ kernel has no gradient through a state.
STATEFUL = [s for s in subjects("attention") if s.backend != "native"]


def going_on(kind: str, causal: bool) -> Operands:
    heads, dim, value_dim, length = 2, 8, 5, 70
    packed = torch.tensor([0, 30, 30, length]) if kind == "packed" else None
    sequences = 3 if kind == "packed" else 1
    q, k = (torch.randn(1, h, length, dim) for h in (2 * heads, heads))
    v = torch.randn(1, heads, length, value_dim)
    alpha, beta = (torch.rand(sequences, h, dim) + 0.5 for h in (2 * heads, heads))
    counts = torch.rand(1, length) < 0.6 if kind == "masked" else None
    summed = torch.randn(sequences, heads, dim, value_dim, dtype=torch.float64)
    start = (torch.randn(sequences, heads, dim), summed, torch.rand(sequences, heads, dim, dtype=torch.float64) + 1)
    return Operands(q, k, v, alpha, beta, None, counts, packed, *start, is_causal=causal)


@pytest.mark.parametrize("subject", STATEFUL, ids=str)
@pytest.mark.parametrize("causal", [False, True], ids=["bidirectional", "causal"])
@pytest.mark.parametrize("kind", ["plain", "masked", "packed"])
def test_states_and_gradients_through_them_agree_with_the_oracle(subject: Subject, kind: str, causal: bool) -> None:
    """A packed sequence without rows hands its state and its gradient on."""
    x = going_on(kind, causal)
    names = ("q", "k", "v", "alpha", "beta", "start_summed", "start_normaliser")

    def results(which: str) -> list[Tensor]:
        leaves = {n: getattr(x, n).detach().requires_grad_() for n in names}
        y = x._replace(**leaves)
        found = compute(subject, y) if which == "actual" else attention(y, "oracle")
        flowing = [found.out, found.summed, found.normaliser]
        upstream = [torch.linspace(-1, 1, t.numel()).reshape(t.shape).to(t.dtype) for t in flowing]
        return [found.out, *found.state, *torch.autograd.grad(flowing, list(leaves.values()), upstream)]

    for name, a, t in zip(("out", "c", "S", "z", *names), results("actual"), results("true"), strict=True):
        torch.testing.assert_close(a, t, atol=1e-5, rtol=1e-5, msg=lambda said, name=name: f"{name}: {said}")
