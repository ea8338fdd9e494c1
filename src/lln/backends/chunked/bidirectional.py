"""Bidirectional LLN attention tile by tile, in linear time, with the features of one tile at a time.

Stable form of eq. 8, with a_i = alpha q_i + w and b_j = beta k_j (products per feature):

    c     = max_j b_j                         per feature, over the keys that count
    S     = sum_j exp(b_j - c) v_j^T          (D, Dv)          z = sum_j exp(b_j - c)          (D,)
    m_i   = max_l (a_il + c_l)                f_i = exp(a_i + c - m_i)
    out_i = f_i S / (f_i . z)

The shifts cancel, so this is exact; every feature is in (0, 1] and every denominator at least 1 (its largest feature
is 1, and so is that feature's largest key), which is why there is no epsilon.
"""

import torch
from torch import Tensor

from lln.backends.chunked.tiles import counting, exponents, keep, read, spans
from lln.backends.operator import Gradients, Operands, State, empty_output


def tile_rows(device: torch.device) -> int:
    """On CPU a tile's features stay in cache; elsewhere larger tiles mean fewer launches."""
    return 128 if device.type == "cpu" else 1024


def forward(x: Operands) -> tuple[Tensor, State]:
    q, k, v, beta = x.q, x.k, x.v, x.beta
    tile, dtype = tile_rows(q.device), beta.dtype
    maximum = _key_maximum(k, beta, x.key_mask, tile)  # (B, Hk, D)
    shift = torch.where(maximum == -torch.inf, 0.0, maximum)
    summed = beta.new_zeros(*beta.shape, v.shape[-1])  # (B, Hk, D, Dv)
    normaliser = torch.zeros_like(beta)
    for span in spans(k.shape[2], tile):
        counts = counting(x.key_mask, span, tile, k)
        g = _key_features(k, beta, shift, counts, span, tile)  # (B, Hk, tile, D)
        values = keep(read(v, span, tile, dtype), counts)
        summed += g.mT @ values
        normaliser += g.sum(dim=-2)

    out = empty_output(q, v.shape[-1])
    grouped_q, grouped_out = x.by_key_head(q), x.by_key_head(out)
    offset, scale = _query_offset(shift, x), x.by_key_head(x.alpha)
    for span in spans(q.shape[2], tile):
        f = _query_features(grouped_q, scale, offset, span, tile)  # (B, Hk, groups, tile, D)
        denominator = _denominator(f, normaliser)
        rows = (f @ summed[:, :, None]) / denominator
        grouped_out[..., span, :] = rows[..., : span.stop - span.start, :]
    return out, State(maximum, summed, normaliser)


def backward(grad: Tensor, out: Tensor, x: Operands, state: State) -> Gradients:
    """The gradients of `operator`'s docstring with the sums over pairs done through the states:

    da_i = f_i * (S t_i - z delta_i);  dS = sum_i f_i t_i^T, dz = -sum_i f_i delta_i
    db_j = g_j * (dS v_j + dz);        dv_j = dS^T g_j
    """
    q, k, v, beta = x.q, x.k, x.v, x.beta
    maximum, summed, normaliser = state
    tile, dtype = tile_rows(q.device), beta.dtype
    shift = torch.where(maximum == -torch.inf, 0.0, maximum)
    dq, dk, dv = empty_output(q, q.shape[-1]), empty_output(k, k.shape[-1]), empty_output(v, v.shape[-1])
    dsummed, dnormaliser = torch.zeros_like(summed), torch.zeros_like(normaliser)
    offset, scale = _query_offset(shift, x), x.by_key_head(x.alpha)
    dscale, doffset = torch.zeros_like(scale), torch.zeros_like(scale)

    grouped_q, grouped_dq, grouped_grad, grouped_out = (x.by_key_head(t) for t in (q, dq, grad, out))
    for span in spans(q.shape[2], tile):
        f = _query_features(grouped_q, scale, offset, span, tile)  # (B, Hk, groups, tile, D)
        denominator = _denominator(f, normaliser)
        dout = read(grouped_grad, span, tile, dtype)
        t = dout / denominator
        delta = (dout * read(grouped_out, span, tile, dtype)).sum(-1, keepdim=True) / denominator
        da = f * (t @ summed[:, :, None].mT - delta * normaliser[:, :, None, None])
        grouped_dq[..., span, :] = (da * scale[..., None, :])[..., : span.stop - span.start, :]
        dscale += (da * read(grouped_q, span, tile, dtype)).sum(dim=-2)
        doffset += da.sum(dim=-2)
        f = f.flatten(2, 3)  # the query heads of a key head add up
        dsummed += f.mT @ t.flatten(2, 3)
        dnormaliser -= (f * delta.flatten(2, 3)).sum(dim=-2)

    dbeta = torch.zeros_like(beta)
    for span in spans(k.shape[2], tile):
        counts = counting(x.key_mask, span, tile, k)
        g = _key_features(k, beta, shift, counts, span, tile)
        values = keep(read(v, span, tile, dtype), counts)
        db = g * (values @ dsummed.mT + dnormaliser[:, :, None])
        rows = span.stop - span.start
        dk[:, :, span] = (db * beta[:, :, None])[:, :, :rows]
        dv[:, :, span] = (g @ dsummed)[:, :, :rows]
        dbeta += (db * keep(read(k, span, tile, dtype), counts)).sum(dim=-2)
    return dq, dk, dv, dscale.flatten(1, 2), dbeta, doffset.flatten(1, 2)


def _query_offset(shift: Tensor, x: Operands) -> Tensor:
    """w + c, (B, Hk, groups, D)."""
    grouped = shift[:, :, None].expand(-1, -1, x.alpha.shape[1] // shift.shape[1], -1)
    return grouped if x.bias is None else grouped + x.by_key_head(x.bias)


def _query_features(q: Tensor, scale: Tensor, offset: Tensor, span: slice, tile: int) -> Tensor:
    exponent = torch.addcmul(offset[..., None, :], read(q, span, tile, scale.dtype), scale[..., None, :])
    return exponent.sub_(exponent.amax(dim=-1, keepdim=True)).exp_()


def _denominator(f: Tensor, normaliser: Tensor) -> Tensor:
    denominator = f @ normaliser[:, :, None, :, None]  # (B, Hk, groups, tile, 1)
    return torch.where(denominator == 0, 1.0, denominator)  # no key counts: the row's numerator is 0 too


def _key_features(k: Tensor, beta: Tensor, shift: Tensor, counts: Tensor | None, span: slice, tile: int) -> Tensor:
    b = exponents(keep(read(k, span, tile, beta.dtype), counts), beta, counts)
    return b.sub_(shift[:, :, None]).exp_()


def _key_maximum(k: Tensor, beta: Tensor, key_mask: Tensor | None, tile: int) -> Tensor:
    """max_j beta_l k_jl over the keys that count; rounding is monotone, so the product may come after the maximum."""
    if key_mask is None:
        smallest, largest = (x.to(beta.dtype) for x in torch.aminmax(k, dim=-2))
        return torch.where(beta >= 0, largest * beta, smallest * beta)
    maximum = torch.full_like(beta, -torch.inf)
    for span in spans(k.shape[2], tile):
        counts = counting(key_mask, span, tile, k)
        b = exponents(keep(read(k, span, tile, beta.dtype), counts), beta, counts)
        maximum = torch.maximum(maximum, b.amax(dim=-2))
    return maximum
