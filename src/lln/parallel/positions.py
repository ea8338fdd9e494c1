"""Stretches are in the order of ranks. A zig-zag layout, made to balance causal softmax, is refused."""

import torch
from torch import Tensor

from lln.parallel.processes import Processes


def check_positions(processes: Processes, positions: Tensor) -> None:
    """Raise, on every process, unless positions (N,) or (B, N) rise by one through all stretches, in the order of ranks."""
    if positions.dim() not in (1, 2):
        raise ValueError(f"positions must be (length,) or (batch, length), got {tuple(positions.shape)}")
    own = positions.reshape(-1, positions.shape[-1])[:1].to(torch.int64).flatten()
    follows = bool((own.diff() == 1).all()) if len(own) > 1 else True
    ends = [int(own[0]), int(own[-1])] if len(own) else [-1, -1]
    everyone = processes.gather(torch.tensor([len(own), *ends, follows], device=positions.device)).tolist()
    expected = None
    for rank, (length, first, last, rises) in enumerate(everyone):
        if not length:
            continue
        if not rises or (expected is not None and first != expected):
            raise ValueError(
                f"the positions of process {rank} go from {first} to {last}"
                + ("" if rises else " with leaps between them")
                + ("" if expected is None else f", those before it end at {expected - 1}")
                + ". A sequence must be cut in order, one stretch per process (lln.parallel.shard). Zig-zag and round-robin "
                "layouts balance the work of causal softmax; that of linear attention is the same for every token"
            )
        expected = last + 1
