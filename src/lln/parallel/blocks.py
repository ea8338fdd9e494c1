"""Softmax inside blocks over a sequence that several processes hold. Each stretch fetches the missing rows of its blocks.

Fetched rows are placed before and after the own ones. If the blocks of all samples have the same origin, the result is an
ordinary sequence that begins at a block boundary. If left padding shifts them, rows are moved to slots, and each block
becomes a separate sample.
"""

import torch
from torch import Tensor

from lln.ops.blocks import Operands, blocks
from lln.ops.blocks.continued import blocks_as_samples
from lln.ops.blocks.op import Results
from lln.ops.slots import Slots
from lln.parallel.agreement import agree
from lln.parallel.attention import needs_gradient
from lln.parallel.edges import Cuts, Need, Rows, exchange, needs_of_packed
from lln.parallel.packed import Crossing, Layout, layout_of
from lln.parallel.processes import Processes


def blocks_over(processes: Processes, x: Operands, backend: str) -> Results:
    """The results of this process's stretch."""
    sequences = 0 if x.cu_seqlens is None else x.cu_seqlens.shape[0] - 1
    agree(
        processes, "attention inside blocks", x.q, x.k, x.v, causal=x.is_causal, sequences=sequences, block_size=x.block_size,
        needs_gradient=needs_gradient(x),
    )  # fmt: skip
    return Results(agreed_blocks_over(processes, x, backend))


def agreed_blocks_over(processes: Processes, x: Operands, backend: str) -> Tensor:
    """The output of this stretch, for those who have made sure that all processes ask for the same."""
    if x.cu_seqlens is not None:
        return _packed(processes, x, layout_of(x.cu_seqlens), backend)
    return _padded(processes, x, backend)


def _packed(processes: Processes, x: Operands, layout: Layout, backend: str) -> Tensor:
    needs = needs_of_packed(layout, x.block_size, x.is_causal)
    own = Rows(x.k, x.v, torch.ones(x.k.shape[0], x.k.shape[2], dtype=torch.bool, device=x.k.device))
    rows, need = completed(processes, own, layout.cuts, needs)
    if x.q.shape[2] == 0:
        return no_rows(x, rows)
    edges = Crossing.of(layout, processes.rank).edges + need.before
    edges[0], edges[-1] = 0, rows.k.shape[2]
    q = _between_zeros(x.q, need)
    found = blocks(x._replace(q=q, k=rows.k, v=rows.v, cu_seqlens=edges.to(x.q.device)), backend).out
    return found.narrow(2, need.before, x.q.shape[2])


def _padded(processes: Processes, x: Operands, backend: str) -> Tensor:
    cuts = Cuts.of(processes, x.k, x.key_mask)
    length = x.q.shape[2]
    counts = torch.ones(x.k.shape[0], length, dtype=torch.bool, device=x.k.device) if x.key_mask is None else x.key_mask
    rows, need = completed(processes, Rows(x.k, x.v, counts), cuts.cuts, cuts.needs(x.block_size, x.is_causal))
    if length == 0:
        return no_rows(x, rows)
    start = cuts.cuts[processes.rank]
    if x.key_mask is None and all(origin == 0 for origin in cuts.origins):
        found = blocks(x._replace(q=_between_zeros(x.q, need), k=rows.k, v=rows.v), backend).out
        return found.narrow(2, need.before, length)
    position = torch.arange(start - need.before, start + length + need.after, device=x.k.device)
    coordinate = position - torch.tensor(cuts.origins, device=x.k.device)[:, None]  # (B, rows)
    return in_slots(x, rows, coordinate, need, backend)


def in_slots(x: Operands, rows: Rows, coordinate: Tensor, need: Need, backend: str) -> Tensor:
    """Rows at `coordinate` (B, rows), from the origin of their sample's blocks on; the own ones come after `need.before`."""
    length, size = x.q.shape[2], x.block_size
    first = torch.div(coordinate[:, need.before, None], size, rounding_mode="floor") * size  # of the first own block
    slots = Slots.of(coordinate - first, rows.k.shape[2] + size, size)
    spread = slots.scatter(_between_zeros(x.q, need)), slots.scatter(rows.k), slots.scatter(rows.v)
    out = blocks_as_samples(*spread, slots.scatter_mask(rows.counts), size, x.scale, x.is_causal, backend)
    return slots.gather(out).narrow(2, need.before, length)


def completed(processes: Processes, own: Rows, cuts: tuple[int, ...], needs: list[Need]) -> tuple[Rows, Need]:
    """The own rows with those that their blocks need before and after them; nothing is sent if none are needed."""
    need = needs[processes.rank]
    if not any(n.before or n.after for n in needs):
        return own, need
    before, after = exchange(processes, own, cuts, needs)
    k, v = (torch.cat(parts, dim=2) for parts in zip(before[:2], own[:2], after[:2], strict=True))
    return Rows(k, v, torch.cat([before.counts, own.counts, after.counts], dim=1)), need


def _between_zeros(q: Tensor, need: Need) -> Tensor:
    """Queries of rows that came from elsewhere: nobody looks at what they find."""
    if not (need.before or need.after):
        return q
    return torch.nn.functional.pad(q, (0, 0, need.before, need.after))


def no_rows(x: Operands, rows: Rows) -> Tensor:
    """The output of no query, hanging on to what was exchanged, so that this process takes part in the backward pass."""
    out = x.q.new_zeros(*x.q.shape[:3], x.v.shape[3])
    return out + x.q.sum() + rows.k.sum() + rows.v.sum()
