"""How wrong a result may be: against the float64 oracle, twice what plain PyTorch of the same dtype makes of the same
formula (three times for gradients), plus a few units in the last place."""

import dataclasses

import torch
from torch import Tensor

from lln.backends import oracle
from tests.cases import Inputs

OUTPUT_FACTOR, GRADIENT_FACTOR, UNITS_IN_LAST_PLACE = 2.0, 3.0, 8.0


def truth(inputs: Inputs) -> Tensor:
    return oracle.attention(
        inputs.q, inputs.k, inputs.v, inputs.alpha, inputs.beta, inputs.bias,
        inputs.key_mask, inputs.cu_seqlens, inputs.causal,
    )[0]  # fmt: skip


def plain(inputs: Inputs) -> Tensor:
    """The stable formula written plainly, in the inputs' own dtype, with autograd's backward."""
    if inputs.cu_seqlens is not None:
        edges = inputs.cu_seqlens.tolist()
        return torch.cat([plain(_sequence(inputs, i, slice(*edges[i : i + 2]))) for i in range(len(edges) - 1)], dim=2)
    dtype, groups = inputs.q.dtype, inputs.q.shape[1] // inputs.k.shape[1]
    a = inputs.alpha.to(dtype)[:, :, None] * inputs.q
    if inputs.bias is not None:
        a = a + inputs.bias.to(dtype)[:, :, None]
    b, v = inputs.beta.to(dtype)[:, :, None] * inputs.k, inputs.v
    if inputs.key_mask is not None:
        b = b.masked_fill(~inputs.key_mask[:, None, :, None], -torch.inf)
    b, v = b.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1)
    if b.shape[2] == 0:
        return a.new_zeros(*a.shape[:3], v.shape[3])
    return _recurrence(a, b, v) if inputs.causal else _two_products(a, b, v)


def _two_products(a: Tensor, b: Tensor, v: Tensor) -> Tensor:
    c = _finite(b.amax(dim=2, keepdim=True)).detach()
    m = (a + c).amax(dim=-1, keepdim=True).detach()
    f, g = (a + c - m).exp(), (b - c).exp()
    return _ratio(f @ (g.mT @ v), f @ g.sum(dim=2)[..., None])


def _recurrence(a: Tensor, b: Tensor, v: Tensor) -> Tensor:
    """One position at a time, with the state relative to the running maximum."""
    maximum = torch.full_like(b[:, :, 0], -torch.inf).detach()
    summed, normaliser = b.new_zeros(*b.shape[:2], b.shape[3], v.shape[3]), torch.zeros_like(b[:, :, 0])
    rows = []
    for i in range(b.shape[2]):
        new = torch.maximum(maximum, b[:, :, i]).detach()
        decay, g = (maximum - _finite(new)).exp(), (b[:, :, i] - _finite(new)).exp()
        summed = decay[..., None] * summed + g[..., None] * v[:, :, i, None]
        normaliser = decay * normaliser + g
        maximum = new
        exponent = a[:, :, i] + _finite(new)
        f = (exponent - exponent.amax(dim=-1, keepdim=True).detach()).exp()[:, :, None]
        rows.append(_ratio(f @ summed, f @ normaliser[..., None]))
    return torch.cat(rows, dim=2)


def _ratio(numerator: Tensor, denominator: Tensor) -> Tensor:
    return numerator / torch.where(denominator == 0, 1.0, denominator)


def _finite(x: Tensor) -> Tensor:
    return torch.where(x == -torch.inf, 0.0, x)


def _sequence(inputs: Inputs, index: int, at: slice) -> Inputs:
    one = slice(index, index + 1)
    return dataclasses.replace(
        inputs, q=inputs.q[:, :, at], k=inputs.k[:, :, at], v=inputs.v[:, :, at], alpha=inputs.alpha[one],
        beta=inputs.beta[one], bias=None if inputs.bias is None else inputs.bias[one], cu_seqlens=None,
    )  # fmt: skip


def term_sizes(inputs: Inputs, upstream: Tensor) -> dict[str, float]:
    """How large the terms are that add up to each result: their last places are the units that rounding is counted in.

    A gradient may be zero by cancellation (a row that attends to one key), while what cancels is not small.
    """
    largest_value = inputs.v.detach().double().abs().amax(dim=(0, 1, 2))  # (Dv,)
    pair = float((upstream.double().abs() @ largest_value).max())  # bounds |dout_i . v_j|
    alpha, beta, q, k = (float(x.detach().abs().max()) for x in (inputs.alpha, inputs.beta, inputs.q, inputs.k))
    return {
        "output": float(largest_value.max()),
        "q": alpha * pair,
        "k": beta * pair,
        "v": float(upstream.abs().max()),
        "alpha": q * pair,
        "beta": k * pair,
        "bias": pair,
    }


def oracle_rounding(inputs: Inputs) -> float:
    """How well the oracle knows the truth, relative to a result's terms: its exponents, too, are rounded to float64.

    An exponent of 300 is known to 300 eps, and so is the weight it makes. Nothing in float32, all there is in float64.
    """
    alpha, beta, q, k = (float(x.detach().abs().max()) for x in (inputs.alpha, inputs.beta, inputs.q, inputs.k))
    bias = 0.0 if inputs.bias is None else float(inputs.bias.detach().abs().max())
    return torch.finfo(torch.float64).eps * (alpha * q + beta * k + bias)


def assert_as_good(
    actual: Tensor,
    plain_result: Tensor,
    true: Tensor,
    factor: float,
    size: float,
    unit: float,
    rounding: float,
    what: str,
) -> None:
    """Last places are those of the inputs' dtype: every gradient goes through the stored output.

    Where plain PyTorch overflows its dtype it sets no measure: then only the last places are allowed.
    """
    true = true.double()
    error = float((actual.double() - true).abs().max())
    plain_error = float((plain_result.double() - true).abs().nan_to_num(0.0, 0.0).max())
    allowed = factor * plain_error + (UNITS_IN_LAST_PLACE * unit + rounding) * size
    assert error <= allowed, (
        f"{what}: error {error:.3g}, allowed {allowed:.3g} (plain PyTorch {plain_error:.3g}, terms {size:.3g})"
    )
