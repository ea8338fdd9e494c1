"""Near exact, far by moments: softmax over windows of blocks, and the moments of all blocks before and after by two scans."""

import torch
import torch.nn.functional as F
from torch import Tensor

from lln.onnx.forms.blocks import InBlocks
from lln.onnx.forms.scanning import Tensors, refuse_packed, scanned
from lln.ops.near_far.moments import Moments, merged
from lln.ops.near_far.op import Operands, Results
from lln.ops.near_far.rows import Scales, mixed, softmax


def near_far(x: Operands) -> Results:
    refuse_packed(x.cu_seqlens)
    laid = InBlocks.of(x.q, x.k, x.v, x.key_mask, x.block_size)
    position = torch.arange(laid.counts.shape[1] * x.block_size, device=x.q.device).unflatten(0, (-1, x.block_size))
    later = (position >= x.first_tokens)[None]  # (1, T, C): not a first token
    of_blocks = Moments.of(laid.k, laid.v, x.beta[:, :, None], laid.counts & later)
    far = _before(of_blocks, x.neighbours, reverse=False)
    if not x.is_causal:
        far = merged(far, _before(of_blocks, x.neighbours, reverse=True))
    near = softmax(laid.q, *_near_keys(laid, x), x.scale)
    scales = Scales(
        x.by_key_head(x.alpha)[:, :, :, None],
        None if x.bias is None else x.by_key_head(x.bias)[:, :, :, None],
        x.by_key_head(x.weights),
    )
    return Results(laid.back(mixed(laid.q, near, far.to(laid.q.dtype), scales, x.scale), x.q.dtype))


def _near_keys(laid: InBlocks, x: Operands) -> tuple[Tensor, Tensor, Tensor]:
    """Keys and values (B, Hk, T, K, ...) and which of them a row sees (B or 1, T, C or 1, K)."""
    offsets = range(-x.neighbours, (0 if x.is_causal else x.neighbours) + 1)
    keys, values = ([_shifted(t, offset, 2) for offset in offsets] for t in (laid.k, laid.v))
    allowed = [_shifted(laid.counts, offset, 1)[:, :, None] for offset in offsets]
    if x.is_causal:
        triangle = torch.ones(x.block_size, x.block_size, dtype=torch.bool, device=x.q.device).tril()
        allowed = [a.expand(-1, -1, x.block_size, -1) for a in allowed[:-1]] + [allowed[-1] & triangle]
    if x.first_tokens:
        # those of the window are there already; what is not seen in it is seen here
        elsewhere = _first_blocks_outside(laid, x)
        count = elsewhere.shape[-1]
        for pieces, t in ((keys, laid.k), (values, laid.v)):
            first = F.pad(t.flatten(2, 3), (0, 0, 0, count))[:, :, None, :count]
            pieces.append(first.expand(-1, -1, t.shape[2], -1, -1))
        allowed.append(elsewhere.expand(-1, -1, allowed[0].shape[2], -1))
    return torch.cat(keys, dim=-2), torch.cat(values, dim=-2), torch.cat(allowed, dim=-1)


def _first_blocks_outside(laid: InBlocks, x: Operands) -> Tensor:
    """(B or 1, T, 1, first): the first tokens that count and lie in no block of the window of block t (causal: before it)."""
    token = torch.arange(x.first_tokens, device=x.q.device)
    counts = F.pad(laid.counts.flatten(1), (0, x.first_tokens))[:, None, : x.first_tokens]
    distance = torch.arange(laid.counts.shape[1], device=x.q.device)[:, None] - token // x.block_size
    outside = distance > x.neighbours if x.is_causal else distance.abs() > x.neighbours
    return (counts & outside)[:, :, None]


def _before(blocks: Moments, neighbours: int, *, reverse: bool) -> Moments:
    """For each block t the moments of the blocks before t - neighbours; reverse: of those after t + neighbours."""
    pieces = [
        _shifted(t, neighbours if reverse else -neighbours, 2, -torch.inf if name == "maximum" else 0.0).movedim(2, 0)
        for name, t in zip(Moments._fields, blocks, strict=True)
    ]
    if reverse:
        pieces = [t.flip(0) for t in pieces]
    start = Moments.of_nothing(blocks.key_mean, blocks.value_mean, blocks.key_mean.dtype)

    def step(carried: Tensors, piece: Tensors) -> tuple[Tensors, Tensors]:
        return tuple(merged(Moments(*carried), Moments(*piece))), tuple(t.clone() for t in carried)

    _, found = scanned(step, tuple(start), tuple(pieces))
    return Moments(*((t.flip(0) if reverse else t).movedim(0, 2) for t in found))


def _shifted(t: Tensor, offset: int, dim: int, nothing: float = 0.0) -> Tensor:
    """Block u + offset in the place of block u; `nothing` beyond the ends."""
    if offset == 0:
        return t
    count, rest = t.shape[dim], (0, 0) * (t.dim() - 1 - dim)
    if offset > 0:
        return F.pad(t, (*rest, 0, offset), value=nothing).narrow(dim, offset, count)
    return F.pad(t, (*rest, -offset, 0), value=nothing).narrow(dim, 0, count)
