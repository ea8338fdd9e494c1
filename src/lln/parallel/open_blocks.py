"""Causal attention inside blocks that goes on from an open block, over a sequence that several processes hold.

Every process has the block that was open at the start, and every process is given the one that is open at the end.
"""

import torch
from torch import Tensor

from lln.ops.blocks import Operands
from lln.ops.blocks.continued import empty_block
from lln.ops.blocks.open_block import OpenBlock
from lln.ops.slots import Slots
from lln.parallel.agreement import agree
from lln.parallel.attention import needs_gradient
from lln.parallel.blocks import completed, in_slots, no_rows
from lln.parallel.cutting import gather_over
from lln.parallel.edges import Cuts, Need, Rows
from lln.parallel.processes import Processes


def continue_blocks_over(
    processes: Processes,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    block: OpenBlock | None,
    *,
    block_size: int,
    scale: float,
    key_mask: Tensor | None,
    backend: str,
) -> tuple[Tensor, OpenBlock]:
    """The output of this stretch, and the block that is open after the whole sequence."""
    x = Operands(q, k, v, key_mask, None, block_size, scale, True)
    agree(
        processes, "attention inside blocks with a state", q, k, v, causal=True, block_size=block_size, start=block is not None,
        needs_gradient=needs_gradient(x),
    )  # fmt: skip
    block = empty_block(k, v, block_size) if block is None else block
    taken = [n if started else None for n, started in zip(block.filled.tolist(), block.started.tolist(), strict=True)]
    cuts = Cuts.of(processes, k, key_mask, taken)
    counts = torch.ones(k.shape[0], k.shape[2], dtype=torch.bool, device=k.device) if key_mask is None else key_mask
    rows, need = completed(processes, Rows(k, v, counts), cuts.cuts, cuts.needs(block_size, True))
    origin = torch.tensor(cuts.origins, device=k.device)[:, None]
    start = cuts.cuts[processes.rank] - need.before
    coordinate = torch.arange(start, start + rows.k.shape[2], device=k.device) - origin
    if q.shape[2] == 0:
        out = no_rows(x, rows)
    else:
        with_past, coordinates = _after_the_past(block, rows, coordinate, block_size)
        out = in_slots(x, with_past, coordinates, Need(block_size + need.before, 0), backend)
    return out, _left_open(processes, Rows(k, v, counts), block, cuts, block_size)


def _after_the_past(block: OpenBlock, rows: Rows, coordinate: Tensor, block_size: int) -> tuple[Rows, Tensor]:
    """The slots of the open block as rows before the others; those that hold nothing are nowhere."""
    slot = torch.arange(block_size, device=coordinate.device)
    nowhere = -(1 << 40)
    held = torch.where((slot < block.filled[:, None]) & block.started[:, None], slot, nowhere)
    k, v = torch.cat([block.keys, rows.k], dim=2), torch.cat([block.values, rows.v], dim=2)
    joined = Rows(k, v, torch.cat([block.counts, rows.counts], dim=1))
    return joined, torch.cat([held, coordinate.expand(len(held), -1)], dim=1)


def _left_open(processes: Processes, own: Rows, block: OpenBlock, cuts: Cuts, block_size: int) -> OpenBlock:
    """From the last rows of every stretch, among which are those since the last block boundary."""
    most = block_size - 1
    last = slice(max(0, own.k.shape[2] - most), None)
    k, v = (gather_over(processes, t[:, :, last], 2) for t in (own.k, own.v))
    counts = gather_over(processes, own.counts[:, last], 1)
    ends = [range(max(a, b - most), b) for a, b in zip(cuts.cuts, cuts.cuts[1:], strict=False)]
    position = torch.tensor([p for some in ends for p in some], dtype=torch.int64, device=k.device)
    origin = torch.tensor(cuts.origins, device=k.device)[:, None]
    rows, coordinate = _after_the_past(block, Rows(k, v, counts), position - origin, block_size)
    end = torch.tensor(cuts.cuts[-1], device=k.device) - origin  # (B, 1)
    started = block.started | (_has_key(processes, own) > 0)
    end = torch.where(started[:, None], end, 0)
    newest = torch.div(end, block_size, rounding_mode="floor") * block_size
    slots = Slots.of(coordinate - newest, block_size, block_size)
    slots = Slots(torch.where(slots.slot >= block_size, block_size, slots.slot), block_size)
    kept = slots.scatter_mask(rows.counts & started[:, None])
    return OpenBlock(slots.scatter(rows.k), slots.scatter(rows.v), kept, (end - newest)[:, 0], started)


def _has_key(processes: Processes, own: Rows) -> Tensor:
    """(B,): in how many stretches a sample has a key that counts."""
    return processes.gather(own.counts.any(dim=1).to(torch.int64)).sum(dim=0)
