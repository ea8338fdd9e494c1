"""Near exact, far by moments, in plain torch on any device, in time and memory linear in the length.

A few blocks, a stretch, are computed at a time. The far keys of block t are those of the blocks up to t - w - 1, whose moments
are carried from stretch to stretch, and, unless causal, of the blocks from t + w + 1 on, whose moments are carried the other
way in a pass before. Only what is carried between stretches is kept; a stretch's own states, of which there is one a block, are
formed, read and dropped, and formed anew for the backward pass. A row meets no later key, not even with weight 0.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.utils.checkpoint import checkpoint

from lln.ops.backends import Backend
from lln.ops.lln.chunked.tiles import laid_out, wide
from lln.ops.near_far import step
from lln.ops.near_far.layout import Layout
from lln.ops.near_far.moments import Moments, merged, stacked, together
from lln.ops.near_far.op import Operands, Results, near_far
from lln.ops.near_far.rows import Near, Scales, mixed, softmax
from lln.ops.near_far.step import near_far_step

ROWS_AT_ONCE = 512


def forward(x: Operands) -> Results:
    layout = Layout.of(x)
    start = Moments.of_nothing(x.k, x.v, layout.dtype)
    # Where nothing is far, the gradient of beta is zero and not missing.
    nothing = torch.where(start.normaliser == 0, 0.0, x.beta.sum(dim=0))
    rows, _ = run(layout, start._replace(normaliser=wide(nothing)))
    out = rows[:, :, : layout.x.q.shape[2]]
    return Results(laid_out(out if layout.slots is None else layout.slots.gather(out), x.q))


def run(
    layout: Layout,
    start: Moments,
    keep: Tensor | None = None,
    *,
    end: Moments | None = None,
    blocks: tuple[int, int] | None = None,
) -> tuple[Tensor, Moments]:
    """The output of every row of `blocks` (all), (B, Hq, blocks * block, Dv), and the far moments of block `keep` (B,).

    `start`: the moments of the far keys of the first block, as far as they come before it; `end`: of those of the last block,
    as far as they come after it (none).
    """
    pieces = list(stretches(layout, blocks))
    ends = _suffixes(layout, pieces, end)
    prefix, rows, kept = start, [], start
    for (first, last), suffix in zip(pieces, ends, strict=True):

        def piece(
            prefix: Moments, suffix: Moments | None, kept: Moments, first: int = first, last: int = last
        ) -> tuple[Tensor, Moments, Moments]:
            return _stretch(layout, first, last, prefix, suffix, kept, keep)

        out, prefix, kept = _recomputed(piece, prefix, suffix, kept)
        rows.append(out)
    return rows[0] if len(rows) == 1 else torch.cat(rows, dim=2), kept


def stretches(layout: Layout, blocks: tuple[int, int] | None = None) -> Iterator[tuple[int, int]]:
    step = max(1, ROWS_AT_ONCE // layout.x.block_size)
    start, stop = (0, layout.blocks) if blocks is None else blocks
    for first in range(start, stop, step):
        yield first, min(first + step, stop)


def moments_of(layout: Layout, blocks: tuple[int, int]) -> Moments:
    """The moments of the keys of these blocks, first tokens left out, (B, Hk, ...)."""
    total = Moments.of_nothing(layout.x.k, layout.x.v, layout.dtype)
    for first, last in stretches(layout, blocks):

        def further(total: Moments, first: int = first, last: int = last) -> Moments:
            return merged(total, together(_block_moments(layout, first, last)))

        total = _recomputed(further, total)
    return total


def _stretch(
    layout: Layout,
    first: int,
    last: int,
    prefix: Moments,
    suffix: Moments | None,
    kept: Moments,
    keep: Tensor | None,
) -> tuple[Tensor, Moments, Moments]:
    """The rows of blocks first .. last - 1, the prefix of block `last`, and `kept` or what is to be kept instead."""
    x = layout.x
    before, found = _block_moments(layout, first - x.neighbours, last - x.neighbours), []
    for block in range(first, last):
        found.append(prefix)
        prefix = _next_prefix(layout, prefix, before, block, first)
        if keep is not None:
            kept = prefix.or_else(keep == block + 1, kept)
    far = stacked(found)
    if suffix is not None:
        far = merged(far, _suffixes_inside(layout, first, last, suffix))
    q = layout.read(x.by_key_head(x.q), first, last)
    near = _near(layout, q, first, last)
    scales = Scales(
        x.by_key_head(layout.of_blocks(x.alpha, first, last)),
        None if x.bias is None else x.by_key_head(layout.of_blocks(x.bias, first, last)),
        x.by_key_head(x.weights),
    )
    out = mixed(q, near, far.to(layout.dtype), scales, x.scale)
    return out.flatten(3, 4).flatten(1, 2), prefix, kept


def _near(layout: Layout, q: Tensor, first: int, last: int) -> Near:
    x = layout.x
    k, v, allowed, poison = _near_keys(layout, first, last)
    near = softmax(q, k, v, allowed, x.scale)
    return near if poison is None else near._replace(out=near.out + poison[:, :, None])


def _near_keys(layout: Layout, first: int, last: int) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Keys and values (B, Hk, T, K, ...) of blocks, which of them a row sees (B or 1, T, C or 1, K), and poison."""
    x, count = layout.x, last - first
    after = 0 if x.is_causal else x.neighbours
    from_, to = first - x.neighbours, last + after
    k, v = layout.keys_and_values(from_, to)
    counts = layout.counting(from_, to)
    poison = None
    if x.is_causal:
        v, poison = _without_poison(v, x.neighbours)
    offsets = range(x.neighbours + after + 1)
    keys, values = ([t[:, :, o : o + count] for o in offsets] for t in (k, v))
    allowed = [_together(layout, counts[:, o : o + count], first, o - x.neighbours) for o in offsets]
    if x.is_causal:
        triangle = torch.ones(x.block_size, x.block_size, dtype=torch.bool, device=k.device).tril()
        allowed = [a.expand(-1, -1, x.block_size, -1) for a in allowed[:-1]] + [allowed[-1] & triangle]
    if layout.first is not None:
        first_keys, first_values, seen = _first_tokens(layout, first, last)
        keys, values = [*keys, first_keys], [*values, first_values]
        allowed = [
            *(a.expand(seen.shape[0], -1, -1, -1) for a in allowed),
            seen.expand(-1, -1, allowed[0].shape[2], -1),
        ]
        allowed = [a.expand(max(t.shape[0] for t in allowed), -1, -1, -1) for a in allowed]
    return torch.cat(keys, dim=-2), torch.cat(values, dim=-2), torch.cat(allowed, dim=-1), poison


def _together(layout: Layout, counts: Tensor, first: int, offset: int) -> Tensor:
    """(B or 1, T, 1, C): the keys of the blocks `offset` further that count, if they are of the same sequence."""
    allowed = counts[:, :, None]
    if layout.sequence is None or offset == 0:
        return allowed
    at = torch.arange(first, first + counts.shape[1], device=counts.device)
    other = (at + offset).clamp(0, layout.blocks - 1)
    return allowed & (layout.sequence[at] == layout.sequence[other])[None, :, None, None]


def _first_tokens(layout: Layout, first: int, last: int) -> tuple[Tensor, Tensor, Tensor]:
    """Keys and values (B, Hk, T, first, ...) at the start of each block's sequence, and which are seen (B or 1, T, 1, first):
    those that are not in the block's window already."""
    x = layout.x
    assert layout.first is not None
    counts, number = layout.first.counts, layout.number[:, first:last]
    block = torch.arange(counts.shape[1], device=counts.device) // x.block_size
    distance = number[..., None] - block  # (B or 1, T, first)
    outside = distance > x.neighbours if x.is_causal else distance.abs() > x.neighbours
    if layout.sequence is None:
        keys, values = (t[:, :, None] for t in (layout.first.keys, layout.first.values))
        seen = outside & counts[:, None]
    else:
        of = layout.sequence[first:last]
        keys, values = (t[of].transpose(0, 1)[None] for t in (layout.first.keys, layout.first.values))
        seen = outside & counts[of][None]
    mask = seen[:, None, :, :, None]  # what is not seen may be of the future
    keys, values = (torch.where(mask, t.to(layout.dtype), 0.0) for t in (keys, values))
    return keys, values, seen[:, :, None]


def _without_poison(v: Tensor, neighbours: int) -> tuple[Tensor, Tensor]:
    """Values that are finite in each row's own block, and what the others add to the rows that see them.

    In their own block they would meet earlier rows with weight 0, and 0 x NaN is NaN.
    """
    with torch.no_grad():
        bad = ~torch.isfinite(v)
        poison = torch.where(bad[:, :, neighbours:], v[:, :, neighbours:], 0.0).cumsum(dim=-2)
    window = torch.where(bad, 0.0, v)
    if neighbours == 0:
        return window, poison
    earlier = torch.where(bad, v, 0.0).detach().sum(dim=-2, keepdim=True)  # (B, Hk, T + w, 1, Dv)
    count = poison.shape[2]
    for offset in range(neighbours):
        poison = poison + earlier[:, :, offset : offset + count]
    return window, poison


def _block_moments(layout: Layout, first: int, last: int) -> Moments:
    """The moments of blocks first .. last - 1 by themselves; of no key beyond the ends."""
    k, v = layout.keys_and_values(first, last)
    return Moments.of(k, v, layout.of_blocks(layout.x.beta, first, last), layout.far_counting(first, last))


def _next_prefix(layout: Layout, prefix: Moments, before: Moments, block: int, first: int) -> Moments:
    """The prefix of block + 1: block - w has left its window, if it was of the same sequence."""
    added = before.at(block - first)
    if layout.sequence is not None and block + 1 < layout.blocks:
        prefix = prefix.where(layout.sequence[block] == layout.sequence[block + 1])
        left = max(block - layout.x.neighbours, 0)  # below 0 there is no key
        added = added.where(layout.sequence[left] == layout.sequence[block + 1])
    return merged(prefix, added)


def _suffixes(layout: Layout, pieces: list[tuple[int, int]], end: Moments | None) -> list[Moments | None]:
    """For each stretch, the moments of the far keys after its last block."""
    if layout.x.is_causal:
        return [None] * len(pieces)
    suffix = Moments.of_nothing(layout.x.k, layout.x.v, layout.dtype) if end is None else end
    found: list[Moments | None] = []
    for first, last in reversed(pieces):
        found.append(suffix)
        if first > pieces[0][0]:

            def earlier(suffix: Moments, first: int = first, last: int = last) -> Moments:
                return _walk_back(layout, first, last, suffix)[1]

            suffix = _recomputed(earlier, suffix)
    return found[::-1]


def _suffixes_inside(layout: Layout, first: int, last: int, suffix: Moments) -> Moments:
    return stacked(_walk_back(layout, first, last, suffix)[0])


def _walk_back(layout: Layout, first: int, last: int, suffix: Moments) -> tuple[list[Moments], Moments]:
    """The suffixes of blocks first .. last - 1, given that of last - 1, and that of block first - 1."""
    w = layout.x.neighbours
    after, found = _block_moments(layout, first + w, last + w), []
    for block in reversed(range(first, last)):
        found.append(suffix)
        added = after.at(block - first)
        if layout.sequence is not None and block > 0:
            suffix = suffix.where(layout.sequence[block] == layout.sequence[block - 1])
            entered = min(block + w, layout.blocks - 1)  # beyond, there is no key
            added = added.where(layout.sequence[entered] == layout.sequence[block - 1])
        suffix = merged(suffix, added)
    return found[::-1], suffix


def _recomputed(piece: Callable[..., Any], *carried: Any) -> Any:
    """piece(*carried), of which only `carried` is kept for the backward pass, unless torch.func or forward mode is at work."""
    seen_through = torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0
    if seen_through or not torch.is_grad_enabled():
        return piece(*carried)
    return checkpoint(piece, *carried, use_reentrant=False, preserve_rng_state=False)


def backward(grads: dict[str, Tensor | None], results: Results, x: Operands, wanted: set[str]) -> dict[str, Tensor]:
    """Inside a graph: autograd through `forward`, computed anew."""
    leaves = {name: getattr(x, name).detach().requires_grad_() for name in sorted(wanted)}
    # The body of an operator runs beneath autograd, which has to see this part.
    with torch._C._SetExcludeDispatchKeyGuard(torch._C.DispatchKey.AutogradFunctionality, False), torch.enable_grad():
        out = forward(x._replace(**leaves)).out
        found = torch.autograd.grad(out, list(leaves.values()), grads["out"])
    return {
        name: laid_out(g, getattr(x, name)) if g.dim() == 4 else g.contiguous()
        for name, g in zip(leaves, found, strict=True)
    }


near_far_step.backends.register(step.PLAIN)
PLAIN = near_far.backends.register(Backend("chunked", forward, backward, transparent=True, by_autograd=True))
