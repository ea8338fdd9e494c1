"""Softmax inside consecutive blocks, and averages of attentions: the two pieces that turn LLN into LLN+Diag (section 4.2).

    Diag:      P_ij = softmax over the keys j of i's own block
    Mixture:   P = w P_1 + (1 - w) P_2,    w = 1/2 in the paper

Both products cost O(N): blocks never meet, and a mixture only adds.
"""

import torch
from torch import Tensor

from lln.instruments.attention import AttentionMatrix
from lln.instruments.checks import check_key_mask, check_queries_and_keys
from lln.ops.masks import block_of_positions, masked_softmax
from lln.ops.slots import block_slots


class BlockDiagonalMatrix(AttentionMatrix):
    """Softmax of q, k (B, H, N, D) inside blocks that count from each sample's first key that counts."""

    def __init__(
        self,
        q: Tensor,
        k: Tensor,
        block_size: int,
        *,
        scale: float | None = None,
        key_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> None:
        check_queries_and_keys(q, k)
        check_key_mask(key_mask, k.shape[0], k.shape[2])
        if q.shape[2] != k.shape[2]:
            raise ValueError(
                f"block-diagonal attention needs as many queries as keys, not {q.shape[2]} and {k.shape[2]}"
            )
        if block_size < 1:
            raise ValueError(f"block_size must be at least 1, not {block_size}")
        dtype = torch.float64 if q.dtype == torch.float64 else torch.float32
        self.q = q.detach().to(dtype)
        self.k = k.detach().to(dtype).repeat_interleave(q.shape[1] // k.shape[1], dim=1)
        batch, heads, length, width = self.q.shape
        super().__init__((batch, heads, length, length), dtype, q.device)
        self.scale = width**-0.5 if scale is None else scale
        self.block_size = block_size
        self.row_mask = key_mask
        self.is_causal = is_causal
        self.width = width
        counts = torch.ones(batch, length, dtype=torch.bool, device=q.device) if key_mask is None else key_mask
        self._counts = counts
        self._block = block_of_positions(length, block_size, key_mask, None, q.device)  # (B or 1, N)
        self._slots = block_slots(self.q, key_mask, None, block_size)

    def log_rows(self, index: Tensor) -> Tensor:
        scores = self.q[:, :, index] @ self.k.mT * self.scale  # (B, H, R, N)
        allowed = (self._block[:, index, None] == self._block[:, None]) & self._counts[:, None]  # (B, R, N)
        if self.is_causal:
            allowed = allowed & (torch.arange(self.shape[3], device=self.device) <= index[:, None])
        no_key = ~allowed.any(-1)[:, None, :, None]
        scores = scores.masked_fill(~allowed[:, None], -torch.inf).masked_fill(no_key, 0.0)
        return torch.log_softmax(scores, dim=-1).masked_fill(no_key, -torch.inf)

    def rows(self, index: Tensor) -> Tensor:
        return self.log_rows(index).exp()

    def apply(self, values: Tensor) -> Tensor:
        return self._unfold(self._weights() @ self._fold(values.to(self.dtype)))

    def transpose(self, x: Tensor) -> Tensor:
        return self._unfold(self._weights().mT @ self._fold(x.to(self.dtype)))

    def _weights(self) -> Tensor:
        """The diagonal blocks, (B, H, blocks, size, size)."""
        scores = self._fold(self.q) @ self._fold(self.k).mT * self.scale
        counts = self._slots.scatter_mask(self._counts).unflatten(1, (-1, self.block_size))  # (B, blocks, size)
        allowed = counts[:, None, :, None].expand(-1, -1, -1, self.block_size, -1)
        return masked_softmax(scores, allowed.tril() if self.is_causal else allowed)

    def _fold(self, x: Tensor) -> Tensor:
        """(B, H, N, C) -> (B, H, blocks, size, C), each sample's block 0 starting at its first key that counts."""
        return self._slots.scatter(x).contiguous().unflatten(2, (-1, self.block_size))

    def _unfold(self, folded: Tensor) -> Tensor:
        return self._slots.gather(folded.flatten(2, 3))


class MixtureMatrix(AttentionMatrix):
    """w P_1 + (1 - w) P_2 of two attentions of one shape; w is a number, one per head (H,), or one per row (B, H, N or 1)."""

    def __init__(self, first: AttentionMatrix, second: AttentionMatrix, weight: float | Tensor = 0.5) -> None:
        if first.shape != second.shape:
            raise ValueError(f"attentions of shapes {first.shape} and {second.shape} cannot be mixed")
        dtype = torch.promote_types(first.dtype, second.dtype)
        super().__init__(first.shape, dtype, first.device)
        self.first, self.second = first, second
        share = torch.as_tensor(weight, dtype=dtype, device=first.device).detach()
        if (share < 0).any() or (share > 1).any():
            raise ValueError(f"the weight of a mixture is between 0 and 1, not {weight}")
        batch, heads, rows, _ = first.shape
        by_row = share.reshape(1, -1, 1) if share.dim() < 2 else share
        self.weight = by_row.expand(batch, heads, rows)[..., None]  # (B, H, N, 1)
        self.is_causal = first.is_causal and second.is_causal
        self.row_mask = first.row_mask if first.row_mask is not None else second.row_mask
        self.width = max(first.width, second.width)

    def rows(self, index: Tensor) -> Tensor:
        return self._mix(self.first.rows(index), self.second.rows(index), self.weight[:, :, index])

    def apply(self, values: Tensor) -> Tensor:
        return self._mix(self.first.apply(values), self.second.apply(values), self.weight)

    def transpose(self, x: Tensor) -> Tensor:
        x = x.to(self.dtype)
        return self.first.transpose(self.weight * x).to(self.dtype) + self.second.transpose((1 - self.weight) * x)

    def _mix(self, first: Tensor, second: Tensor, weight: Tensor) -> Tensor:
        return weight * first.to(self.dtype) + (1 - weight) * second.to(self.dtype)
