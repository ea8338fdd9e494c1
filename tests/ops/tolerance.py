"""How wrong a result may be: against the float64 oracle, twice what plain PyTorch of the same dtype makes of the same
formula (three times for gradients), plus a few units in the last place."""

import dataclasses
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from lln.ops.lln import Operands, oracle
from tests.ops.cases import Inputs

OUTPUT_FACTOR, GRADIENT_FACTOR, UNITS_IN_LAST_PLACE = 2.0, 3.0, 4.0


def truth(inputs: Inputs) -> Tensor:
    """In float64, whatever the inputs' dtype."""
    double = (
        None if t is None else t.double()
        for t in (inputs.q, inputs.k, inputs.v, inputs.alpha, inputs.beta, inputs.bias)
    )
    return oracle.forward(Operands(*double, inputs.key_mask, inputs.cu_seqlens, is_causal=inputs.causal)).out


def plain(inputs: Inputs, fused: bool = False) -> Tensor:
    """The stable formula written plainly, in the inputs' own dtype, with autograd's backward.

    There are two plain ways to write the exponent alpha q + w + c: product first, ((alpha q) + w) + c, and fused,
    addcmul(w + c, alpha, q), whose product is not rounded. Neither is the better one: at an exponent of 480 float32
    knows 3e-5, only the rows whose largest weights nearly tie feel it, and which of the two is luckier there changes
    with the seed. The larger of their errors is the measure.
    """
    if inputs.cu_seqlens is not None:
        edges = inputs.cu_seqlens.tolist()
        parts = [plain(_sequence(inputs, i, slice(*edges[i : i + 2])), fused) for i in range(len(edges) - 1)]
        return torch.cat(parts, dim=2)
    dtype, groups = inputs.q.dtype, inputs.q.shape[1] // inputs.k.shape[1]
    alpha = inputs.alpha.to(dtype)[:, :, None]
    w = torch.zeros_like(alpha) if inputs.bias is None else inputs.bias.to(dtype)[:, :, None]
    b, v = inputs.beta.to(dtype)[:, :, None] * inputs.k, inputs.v
    if inputs.key_mask is not None:
        b = b.masked_fill(~inputs.key_mask[:, None, :, None], -torch.inf)
    b, v = b.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1)
    if b.shape[2] == 0:
        return inputs.q.new_zeros(*inputs.q.shape[:3], v.shape[3])

    def exponent(c: Tensor, rows: slice) -> Tensor:
        q = inputs.q[:, :, rows]
        return torch.addcmul(w + c, alpha, q) if fused else alpha * q + w + c

    return _recurrence(exponent, b, v) if inputs.causal else _two_products(exponent, b, v)


Exponent = Callable[[Tensor, slice], Tensor]  # (shift of the keys, rows) -> alpha q + w + shift


def _two_products(exponent: Exponent, b: Tensor, v: Tensor) -> Tensor:
    c = _finite(b.amax(dim=2, keepdim=True)).detach()
    f, g = _below_its_maximum(exponent(c, slice(None))).exp(), (b - c).exp()
    return _ratio(f @ (g.mT @ v), f @ g.sum(dim=2)[..., None])


def _recurrence(exponent: Exponent, b: Tensor, v: Tensor) -> Tensor:
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
        f = _below_its_maximum(exponent(_finite(new)[:, :, None], slice(i, i + 1))).exp()
        rows.append(_ratio(f @ summed, f @ normaliser[..., None]))
    return torch.cat(rows, dim=2)


def _below_its_maximum(exponent: Tensor) -> Tensor:
    return exponent - exponent.amax(dim=-1, keepdim=True).detach()


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
    """How large the terms that add up to each result are together: their last places are what rounding is counted in.

    A sum of n terms is known to a few units in the last place of the sum of their absolute values, however much of it
    cancels. With T_ij = P_ij sum_c |dout_ic| |v_jc|, the sums are over the pairs that meet in a result:
    v of P_ij |dout_i|, q and k of T_ij along a row and along a column, their scales of those times |q| and |k|.
    """
    with torch.no_grad():
        matrix = oracle.matrix(inputs.operands)
    key_heads, counts = inputs.k.shape[1], inputs.key_mask
    q, k, v = (x.detach().double().abs() for x in (inputs.q, inputs.k, inputs.v))
    if counts is not None:
        k, v = (x * counts[:, None, :, None] for x in (k, v))
    dout = upstream.double().abs()
    terms = matrix * (dout @ v.repeat_interleave(dout.shape[1] // key_heads, dim=1).mT)  # T, (B, Hq, Nq, Nk)
    rows, columns = terms.sum(dim=-1), terms.sum(dim=-2).unflatten(1, (key_heads, -1)).sum(dim=2)
    to_values = (matrix.mT @ dout).unflatten(1, (key_heads, -1)).sum(dim=2)
    alpha, beta = (float(x.detach().abs().max()) for x in (inputs.alpha, inputs.beta))
    return {
        "output": _largest(v),
        "q": alpha * _largest(rows),
        "k": beta * _largest(columns),
        "v": _largest(to_values),
        "alpha": _largest((q * rows[..., None]).sum(dim=2)),
        "beta": _largest((k * columns[..., None]).sum(dim=2)),
        "bias": _largest(rows.sum(dim=2)),
    }


def _largest(x: Tensor) -> float:
    return float(x.max()) if x.numel() else 0.0


def oracle_rounding(inputs: Inputs) -> float:
    """How well the oracle knows the truth, relative to a result's terms: its exponents, too, are rounded to float64.

    An exponent of 300 is known to 300 eps, and so is the weight it makes. Nothing in float32, all there is in float64.
    """
    alpha, beta, q, k = (float(x.detach().abs().max()) for x in (inputs.alpha, inputs.beta, inputs.q, inputs.k))
    bias = 0.0 if inputs.bias is None else float(inputs.bias.detach().abs().max())
    return torch.finfo(torch.float64).eps * (alpha * q + beta * k + bias)


def assert_as_good(
    actual: Tensor,
    plain_results: Sequence[Tensor],
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
    plain_error = max(float((x.double() - true).abs().nan_to_num(0.0, 0.0).max()) for x in plain_results)
    allowed = factor * plain_error + (UNITS_IN_LAST_PLACE * unit + rounding) * size
    assert error <= allowed, (
        f"{what}: error {error:.3g}, allowed {allowed:.3g} (plain PyTorch {plain_error:.3g}, terms {size:.3g})"
    )
