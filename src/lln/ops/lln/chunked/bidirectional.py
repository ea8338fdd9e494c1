"""Bidirectional LLN attention tile by tile, in linear time, with the features of one tile at a time.

Stable form of eq. 8, with a_i = alpha q_i + w and b_j = beta k_j (products per feature):

    c     = max_j b_j                         per feature, over the keys that count and those of the starting state
    S     = sum_j exp(b_j - c) v_j^T          (D, Dv)          z = sum_j exp(b_j - c)          (D,)
    m_i   = max_l (a_il + c_l)                f_i = exp(a_i + c - m_i)
    out_i = f_i S / (f_i . z)

The shifts cancel, so this is exact; every feature is in (0, 1] and every denominator at least 1 (its largest feature
is 1, and so is that feature's largest key), which is why there is no epsilon. A tile is summed in the compute dtype and
the tiles in float64, so that no error grows with the length.
"""

import torch
from torch import Tensor

from lln.ops.lln.chunked.tiles import counting, decay, exponents, finite, join, keep, read, spans, wide, wide_zeros
from lln.ops.lln.op import Operands, State


def tile_rows(device: torch.device) -> int:
    """On CPU a tile's features stay in cache; elsewhere larger tiles mean fewer launches."""
    return 128 if device.type == "cpu" else 1024


def key_state(x: Operands) -> State:
    """c, S and z of all keys that count, the starting state's included; the sums in the accumulation dtype."""
    k, v, beta = x.k, x.v, x.beta
    tile = tile_rows(k.device)
    start = x.start or State.without_keys(beta, v.shape[-1])
    maximum = torch.maximum(_key_maximum(k.detach(), beta.detach(), x.key_mask, tile), start.maximum.detach())
    shift, kept = finite(maximum), decay(start.maximum.detach(), maximum)
    summed, normaliser = wide(start.summed) * kept[..., None], wide(start.normaliser) * kept
    for span in spans(k.shape[2], tile):
        counts = counting(x.key_mask, span, tile, k)
        g = _key_features(k, beta, shift, counts, span, tile)  # (B, Hk, tile, D)
        summed = summed + g.mT @ keep(read(v, span, tile, beta.dtype), counts)
        normaliser = normaliser + g.sum(dim=-2)
    return State(maximum, summed, normaliser)


def read_state(x: Operands, state: State) -> Tensor:
    """What the queries find in the state, (B, Hq, Nq, Dv)."""
    state = state.with_sums_in(x.beta.dtype)
    q, tile = x.q, tile_rows(x.q.device)
    offset, scale, grouped = _query_offset(state, x), x.by_key_head(x.alpha), x.by_key_head(q)
    rows = []
    for span in spans(q.shape[2], tile):
        f = _query_features(grouped, scale, offset, span, tile)  # (B, Hk, groups, tile, D)
        rows.append((f @ state.summed[:, :, None] / _denominator(f, state.normaliser)).flatten(1, 2))
    return join(rows, q)


def read_state_backward(grad: Tensor, out: Tensor, x: Operands, state: State) -> tuple[dict[str, Tensor], State]:
    """Gradients of q, alpha and bias, and of the state (whose maximum is a constant):

    da_i = f_i * (S t_i - z delta_i);  dS = sum_i f_i t_i^T, dz = -sum_i f_i delta_i
    """
    q, tile, dtype = x.q, tile_rows(x.q.device), x.beta.dtype
    _, summed, normaliser = state.with_sums_in(dtype)
    offset, scale = _query_offset(state, x), x.by_key_head(x.alpha)
    dsummed, dnormaliser, dscale, doffset = (wide_zeros(t) for t in (summed, normaliser, scale, scale))
    grouped_q, grouped_grad, grouped_out = (x.by_key_head(t) for t in (q, grad, out))
    dq = []
    for span in spans(q.shape[2], tile):
        f = _query_features(grouped_q, scale, offset, span, tile)  # (B, Hk, groups, tile, D)
        denominator = _denominator(f, normaliser)
        dout = read(grouped_grad, span, tile, dtype)
        t = dout / denominator
        delta = (dout * read(grouped_out, span, tile, dtype)).sum(-1, keepdim=True) / denominator
        da = f * (t @ summed[:, :, None].mT - delta * normaliser[:, :, None, None])
        dq.append((da * scale[..., None, :]).flatten(1, 2))
        dscale = dscale + (da * read(grouped_q, span, tile, dtype)).sum(dim=-2)
        doffset = doffset + da.sum(dim=-2)
        f = f.flatten(2, 3)  # the query heads of a key head add up
        dsummed = dsummed + f.mT @ t.flatten(2, 3)
        dnormaliser = dnormaliser - (f * delta.flatten(2, 3)).sum(dim=-2)
    of_scales = {"alpha": dscale.flatten(1, 2).to(dtype), "bias": doffset.flatten(1, 2).to(dtype)}
    return {"q": join(dq, q), **of_scales}, State(state.maximum, dsummed, dnormaliser)


def key_state_backward(x: Operands, gradient: State) -> dict[str, Tensor]:
    """Gradients of k, v, beta and the starting state from that of the final state, relative to the final maximum:

    db_j = g_j * (dS v_j + dz);  dv_j = dS^T g_j;  dS_start = exp(c_start - c) dS, and dz_start likewise
    """
    k, v, beta, tile = x.k, x.v, x.beta, tile_rows(x.k.device)
    shift, (_, dsummed, dnormaliser) = finite(gradient.maximum), gradient.with_sums_in(beta.dtype)
    dbeta = wide_zeros(beta)
    dk, dv = [], []
    for span in spans(k.shape[2], tile):
        counts = counting(x.key_mask, span, tile, k)
        g = _key_features(k, beta, shift, counts, span, tile)
        values = keep(read(v, span, tile, beta.dtype), counts)
        # not g (dS v + dz): dz is the same for all keys, so rounding that sum would err the same way in each of them
        db = torch.addcmul(g * (values @ dsummed.mT), g, dnormaliser[:, :, None])
        dk.append(db * beta[:, :, None])
        dv.append(g @ dsummed)
        dbeta = dbeta + (db * keep(read(k, span, tile, beta.dtype), counts)).sum(dim=-2)
    gradients = {"k": join(dk, k), "v": join(dv, v), "beta": dbeta.to(beta.dtype)}
    if x.start is not None:
        kept = decay(x.start.maximum, gradient.maximum)
        of_start = State(x.start.maximum, dsummed * kept[..., None], dnormaliser * kept).with_sums_in(x.sums_dtype)
        gradients |= {"start_summed": of_start.summed, "start_normaliser": of_start.normaliser}
    return gradients


def _query_offset(state: State, x: Operands) -> Tensor:
    """w + c, (B, Hk, groups, D)."""
    shift = finite(state.maximum)
    grouped = shift[:, :, None].expand(-1, -1, x.alpha.shape[1] // shift.shape[1], -1)
    return grouped if x.bias is None else grouped + x.by_key_head(x.bias)


def _query_features(q: Tensor, scale: Tensor, offset: Tensor, span: slice, tile: int) -> Tensor:
    exponent = torch.addcmul(offset[..., None, :], read(q, span, tile, scale.dtype), scale[..., None, :])
    return (exponent - exponent.detach().amax(dim=-1, keepdim=True)).exp()


def _denominator(f: Tensor, normaliser: Tensor) -> Tensor:
    denominator = f @ normaliser[:, :, None, :, None]  # (B, Hk, groups, tile, 1)
    return torch.where(denominator == 0, 1.0, denominator)  # no key counts: the row's numerator is 0 too


def _key_features(k: Tensor, beta: Tensor, shift: Tensor, counts: Tensor | None, span: slice, tile: int) -> Tensor:
    return (exponents(keep(read(k, span, tile, beta.dtype), counts), beta, counts) - shift[:, :, None]).exp()


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
