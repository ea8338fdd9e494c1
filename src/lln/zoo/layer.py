"""Members that are whole layers: they mix positions and channels at once, so they also replace the feed-forward layer.

x + layer(x) is the block of the member's paper; norms and inner residuals are inside.
"""

import torch
from torch import Tensor, nn

from lln.ops.masks import first_key
from lln.ops.stretches import refuse_stretches
from lln.zoo.card import Card, refuse_unsupported
from lln.zoo.mechanism import Shape, roll, roll_mask


class Layer(nn.Module):
    """x (B, N, E), key_mask (B, N) -> (B, N, E). Positions count from the first that counts."""

    card: Card

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape

    def update(self, x: Tensor, key_mask: Tensor | None, is_causal: bool) -> Tensor:
        """What the block adds to x. Masked positions of x are zero, but must still be kept from counting."""
        raise NotImplementedError

    def matrices(self, x: Tensor, key_mask: Tensor | None, is_causal: bool) -> Tensor:
        """The matrices (B, any, N, N) that mix positions."""
        raise NotImplementedError

    def forward(
        self,
        x: Tensor,
        key_mask: Tensor | None = None,
        is_causal: bool = False,
        context: Tensor | None = None,
    ) -> Tensor:
        x, mask, shift = self._prepared(x, key_mask, is_causal, context)
        out = self.update(x, mask, is_causal)
        return out if shift is None else roll(out[:, None], -shift)[:, 0]

    def dense(self, x: Tensor, key_mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
        """The matrices (B, any, N, N) that mix positions."""
        x, mask, shift = self._prepared(x, key_mask, is_causal, None)
        found = self.matrices(x, mask, is_causal)
        if shift is None:
            return found
        return roll(roll(found, -shift).transpose(-1, -2), -shift).transpose(-1, -2)

    def _prepared(
        self, x: Tensor, mask: Tensor | None, is_causal: bool, context: Tensor | None
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        refuse_stretches(type(self).__name__)
        refuse_unsupported(self.card, is_causal, context is not None)
        if x.ndim != 3 or x.shape[2] != self.shape.embed_dim or x.shape[1] > self.shape.longest:
            raise ValueError(
                f"x must be (batch, length up to {self.shape.longest}, {self.shape.embed_dim}), got {tuple(x.shape)}"
            )
        if mask is None:
            return x, None, None
        if mask.dtype != torch.bool or mask.shape != x.shape[:2]:
            raise ValueError(
                f"key_mask must be bool of shape {tuple(x.shape[:2])}, True where a key counts; "
                f"got {mask.dtype} of shape {tuple(mask.shape)}"
            )
        x = x.masked_fill(~mask[..., None], 0.0)
        if bool(mask[:, 0].all()):
            return x, mask, None
        shift = first_key(mask)[:, 0]
        return roll(x[:, None], shift)[:, 0], roll_mask(mask, shift), shift
