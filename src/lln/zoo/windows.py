"""Segments of a sequence and the windows of keys around them, in linear memory."""

import torch
import torch.nn.functional as F
from torch import Tensor


def windows(x: Tensor, segment: int, reach: int) -> Tensor:
    """(B, H, N, D) -> (B, G, H, segment + 2 reach, D): for each segment, it and `reach` positions on either side."""
    padded = F.pad(x, (0, 0, reach, reach + -x.shape[2] % segment))
    return padded.unfold(2, segment + 2 * reach, segment).permute(0, 2, 1, 4, 3)


def window_positions(length: int, segment: int, reach: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Positions of queries (G, segment, 1) and keys (G, 1, segment + 2 reach) of each window; keys may lie outside."""
    start = torch.arange(0, length, segment, device=device)[:, None]
    queries = start + torch.arange(segment, device=device)
    keys = start - reach + torch.arange(segment + 2 * reach, device=device)
    return queries[:, :, None], keys[:, None, :]


def window_mask(key_mask: Tensor | None, length: int, segment: int, reach: int, device: torch.device) -> Tensor:
    """Which keys of each window exist and count, (B or 1, G, 1, segment + 2 reach)."""
    counts = torch.ones(1, length, dtype=torch.bool, device=device) if key_mask is None else key_mask
    padded = F.pad(counts, (reach, reach + -length % segment))
    return padded.unfold(1, segment + 2 * reach, segment)[:, :, None, :]


def from_segments(x: Tensor, length: int) -> Tensor:
    """(B, G, H, segment, D) -> (B, H, length, D)."""
    return x.transpose(1, 2).flatten(2, 3)[:, :, :length]
