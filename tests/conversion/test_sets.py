"""Cross-attention by the moments of its keys: the equation, position by position, and what it is better than."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lln
from lln.conversion import converted_sites, description, rebuild, sets
from lln.conversion.call import AttentionCall, read_call
from lln.conversion.parameters import LayerShape, LLNParameters


def parameters(heads: int = 4, key_heads: int = 2, dim: int = 8) -> LLNParameters:
    own = LLNParameters(LayerShape(heads, key_heads, dim, near_far=True)).double()
    draw = torch.Generator().manual_seed(3)
    own.set(**{name: torch.rand(x.shape, generator=draw).double() + 0.3 for name, x in own.named_parameters()})
    return own


def given(mask: bool) -> AttentionCall:
    draw = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(2, *shape, generator=draw).double() for shape in ((4, 7, 8), (2, 23, 8), (2, 23, 5)))
    counts = torch.rand(2, 1, 1, 23, generator=draw) < 0.7 if mask else None
    return read_call(3 * q, k + 1, v, counts, enable_gqa=True)


def literal(call: AttentionCall, own: LLNParameters, sample: int, head: int, row: int) -> Tensor:
    """One row of one head."""
    of = head // (call.q.shape[1] // call.k.shape[1])
    counts = slice(None) if call.key_mask is None else call.key_mask[sample]
    q, k, v = call.q[sample, head, row], call.k[sample, of][counts], call.v[sample, of][counts]
    _, w_lln, w_mean, w_slope = own.weights[head]  # type: ignore[index]
    scores = (own.feature_bias[head] + own.alpha[head] * q + own.beta[of] * k).exp().sum(dim=1)
    mean, spread = k.mean(dim=0), k.var(dim=0, unbiased=False)
    x = call.scale**2 * float((q.square() * spread).sum())
    fall = min(1.0, math.sqrt(2 * math.log(len(k)) / x))
    covariance = (v - v.mean(dim=0)).T @ (k - mean) / len(k)
    slope = fall * call.scale * covariance @ q
    return w_lln * (scores @ v / scores.sum()) + w_mean * v.mean(dim=0) + w_slope * slope


@pytest.mark.parametrize("rows", [8192, 5], ids=["at once", "in pieces"])
@pytest.mark.parametrize("mask", [False, True], ids=["all", "masked"])
def test_the_equation(mask: bool, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sets, "ROWS", rows)
    call, own = given(mask), parameters()
    found = sets.set_attention(call, own)
    for sample, head, row in ((0, 0, 0), (1, 1, 3), (0, 2, 6), (1, 3, 2)):
        torch.testing.assert_close(found[sample, head, row], literal(call, own, sample, head, row))


class Reader(nn.Module):
    """Rows that read a set."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(32, 4, batch_first=True)

    def forward(self, x: Tensor, context: Tensor) -> Any:
        return self.attention(x, context, context)[0]


def converted() -> tuple[Reader, list[tuple[Tensor, Tensor]], Any]:
    torch.manual_seed(0)
    model = Reader().eval()
    nn.init.normal_(model.attention.in_proj_weight, std=0.4)
    pairs = [(torch.randn(2, 30, 32), torch.randn(2, 200, 32)) for _ in range(3)]
    return model, pairs, lln.convert(model, pairs)


def test_moments_are_nearer_to_softmax_than_lln_alone() -> None:
    model, pairs, report = converted()
    site = converted_sites(model)["attention"][0]
    assert site is not None and site.options.cross and site.options.moments
    fitted = report.replaced["attention"]
    lln.unload(model)
    with torch.no_grad():
        wanted = [model(*pair) for pair in pairs]
        lln.convert(model, pairs)
        own = converted_sites(model)["attention"][0].parameters_of_heads  # type: ignore[union-attr]
        by_moments = [model(*pair) for pair in pairs]
        own.set(weights=torch.tensor([[0.0, 1.0, 0.0, 0.0]]))
        by_lln = [model(*pair) for pair in pairs]
    errors = [sum(float((a - b).square().sum()) for a, b in zip(x, wanted, strict=True)) for x in (by_moments, by_lln)]
    assert 0 < fitted < 1 and errors[0] < 0.7 * errors[1]


def test_an_earlier_conversion_stays_lln_alone() -> None:
    model, pairs, _ = converted()
    told = description(model)
    for site in told["sites"]["attention"]:
        del site["moments"]
    weights = model.state_dict()
    earlier = rebuild(Reader().eval(), {**told, "version": 2})
    earlier.load_state_dict(weights)
    own = converted_sites(model)["attention"][0].parameters_of_heads  # type: ignore[union-attr]
    own.set(weights=torch.tensor([[0.0, 1.0, 0.0, 0.0]]))
    with torch.no_grad():
        torch.testing.assert_close(earlier(*pairs[0]), model(*pairs[0]), rtol=1e-4, atol=1e-5)
