"""LLN (eq. 8) and LLN+Diag. Bidirectional: two products. Causal: a scan over short pieces with the state carried along.

In a piece every row i has a reference of its own, m_il = max(c_l, max_{j <= i} b_jl), so that no weight overflows and none of
later keys is ever formed:

    f_il  = exp(a_il + m_il - max_l (a_il + m_il))
    out_i = (sum_l f_il exp(c_l - m_il) S_l + sum_{j <= i} w_ij v_j) / (the same with z for S and 1 for v)
    w_ij  = sum_l f_il exp(b_jl - m_il)                                                     PIECE x D exponentials a row
"""

import torch
from torch import Tensor

from lln.onnx.forms.blocks import blocks
from lln.onnx.forms.scanning import Tensors, refuse_packed, scanned, to_multiple
from lln.ops.diag.op import Operands as DiagOperands
from lln.ops.diag.op import Results as DiagResults
from lln.ops.lln.chunked.tiles import decay, finite
from lln.ops.lln.op import Operands, Results, State

PIECE = 16


def attention(x: Operands) -> Results:
    refuse_packed(x.cu_seqlens)
    b = x.k.to(x.beta.dtype) * x.beta[:, :, None]
    v = x.v.to(b.dtype)
    if x.key_mask is not None:
        counts = x.key_mask[:, None, :, None]
        b, v = torch.where(counts, b, -torch.inf), torch.where(counts, v, 0.0)
    a = x.q.to(x.alpha.dtype) * x.alpha[:, :, None]
    if x.bias is not None:
        a = a + x.bias[:, :, None]
    a = x.by_key_head(a)  # (B, Hk, groups, Nq, D)
    start = x.start or State.without_keys(x.beta, v.shape[-1])
    one = isinstance(a.shape[3], int) and a.shape[3] == 1  # token, for all time: it sees all keys that there are
    out, state = (_causal if x.is_causal and not one else _bidirectional)(a, b, v, start)
    return Results(out.flatten(1, 2).to(x.q.dtype), *state.with_sums_in(x.sums_dtype))


def diag(x: DiagOperands) -> DiagResults:
    far = attention(x.lln)
    near, rest = (t.to(x.weight.dtype) for t in (blocks(x.blocks).out, far.out))
    out = torch.lerp(near, rest, x.weight[..., None]).to(x.q.dtype)
    return DiagResults(out, far.out if x.keep_branch else x.q.new_empty(0), *far.state)


def _bidirectional(a: Tensor, b: Tensor, v: Tensor, start: State) -> tuple[Tensor, State]:
    maximum = torch.maximum(b.amax(dim=2), start.maximum)
    kept = decay(start.maximum, maximum)
    g = (b - finite(maximum)[:, :, None]).exp()
    summed = start.summed * kept[..., None] + g.mT @ v
    normaliser = start.normaliser * kept + g.sum(dim=2)
    f = _relative(a + finite(maximum)[:, :, None, None])
    out = _ratio(f @ summed.to(f.dtype)[:, :, None], f @ normaliser.to(f.dtype)[:, :, None, :, None])
    return out, State(maximum, summed, normaliser)


def _causal(a: Tensor, b: Tensor, v: Tensor, start: State) -> tuple[Tensor, State]:
    length = a.shape[3]
    pieces = []
    for x, dim, nothing in ((a, 3, 0.0), (b, 2, -torch.inf), (v, 2, 0.0)):
        padded = to_multiple(x, PIECE, dim)
        if nothing:  # what is not there is no key
            there = to_multiple(torch.ones_like(x[0, 0, :, :1], dtype=torch.bool), PIECE, 0)
            padded = torch.where(there, padded, nothing)
        pieces.append(padded.unflatten(dim, (-1, PIECE)).movedim(dim, 0))
    triangle = torch.ones(PIECE, PIECE, dtype=torch.bool, device=a.device).tril()[..., None]  # (i, j, 1)

    def step(carried: Tensors, piece: Tensors) -> tuple[Tensors, Tensors]:
        before, (a, b, v) = State(*carried), piece  # (B, Hk, groups, C, D), (B, Hk, C, D), (B, Hk, C, Dv)
        among = torch.where(triangle, b[:, :, None], -torch.inf)  # (B, Hk, i, j, D)
        reference = torch.maximum(among.amax(dim=3), before.maximum[:, :, None])  # m, (B, Hk, C, D)
        f = _relative(a + finite(reference)[:, :, None])
        kept = f * decay(before.maximum[:, :, None], reference)[:, :, None]
        # w_ij = sum_l f_il exp(b_jl - m_il), as a product for each row i
        weights = ((among - finite(reference)[:, :, :, None]).exp()[:, :, None] @ f[..., None])[..., 0]
        numerator = kept @ before.summed.to(f.dtype)[:, :, None] + weights @ v[:, :, None]
        denominator = kept @ before.normaliser.to(f.dtype)[:, :, None, :, None] + weights.sum(dim=-1, keepdim=True)
        last = reference[:, :, -1]
        g, left = (b - finite(last)[:, :, None]).exp(), decay(before.maximum, last)
        after = (last.clone(), before.summed * left[..., None] + g.mT @ v, before.normaliser * left + g.sum(dim=2))
        return after, (_ratio(numerator, denominator),)

    state, (out,) = scanned(step, tuple(start), tuple(pieces))
    return out.movedim(0, 3).flatten(3, 4)[:, :, :, :length], State(*state)


def _relative(exponent: Tensor) -> Tensor:
    return (exponent - exponent.amax(dim=-1, keepdim=True)).exp()


def _ratio(numerator: Tensor, denominator: Tensor) -> Tensor:
    return numerator / torch.where(denominator == 0, 1.0, denominator)
