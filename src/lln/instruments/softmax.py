"""Softmax attention as instruments see it.

    P_ij = exp(s q_i . k_j) / sum_l exp(s q_i . k_l),    s = 1/sqrt(d)        (eq. 1, eq. 2)

Eq. 6 is the same with the scores divided by their deviation, and by the temperature, which is its inverse (eq. 5).

The product with values is `scaled_dot_product_attention`, in O(N) memory as long as the values are as wide as the head.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from lln.instruments.attention import AttentionMatrix
from lln.instruments.checks import check_key_mask, check_queries_and_keys


class SoftmaxMatrix(AttentionMatrix):
    """q (B, Hq, Nq, D), k (B, Hk, Nk, D); `mask` is what SDPA takes: bool (True = may look) or added to the scores."""

    def __init__(
        self,
        q: Tensor,
        k: Tensor,
        *,
        scale: float | None = None,
        key_mask: Tensor | None = None,
        is_causal: bool = False,
        mask: Tensor | None = None,
    ) -> None:
        check_queries_and_keys(q, k)
        check_key_mask(key_mask, k.shape[0], k.shape[2])
        if mask is not None and (is_causal or key_mask is not None):
            raise ValueError("give either a full mask, or key_mask and is_causal, not both")
        dtype = torch.float64 if q.dtype == torch.float64 else torch.float32
        self.q = q.detach().to(dtype).contiguous()
        self.k = k.detach().to(dtype).repeat_interleave(q.shape[1] // k.shape[1], dim=1).contiguous()
        super().__init__((*q.shape[:3], k.shape[2]), dtype, q.device)
        self.scale = q.shape[-1] ** -0.5 if scale is None else scale
        self.is_causal = is_causal or (mask is not None and _is_triangular(mask.detach(), self.shape))
        self.width = q.shape[-1]
        self.key_mask = key_mask
        self.mask = mask.detach() if mask is not None else None
        square = q.shape[2] == k.shape[2]
        if mask is not None:
            seen = _keys_seen(mask.detach(), self.shape)
            self.row_mask = seen if square and not seen.all() else None
        elif square:
            self.row_mask = key_mask

    def log_rows(self, index: Tensor) -> Tensor:
        scores = self.q[:, :, index] @ self.k.mT * self.scale  # (B, H, R, Nk)
        addition = self._score_addition(index)
        if addition is not None:
            scores = scores + addition
        scores = scores.masked_fill(torch.isneginf(scores).all(-1, keepdim=True), 0.0)  # a row without keys: not NaN
        return torch.log_softmax(scores, dim=-1)

    def rows(self, index: Tensor) -> Tensor:
        return self.log_rows(index).exp()

    def apply(self, values: Tensor) -> Tensor:
        pieces = []
        every = torch.arange(self.shape[2], device=self.device)
        # With a causal flag and no mask, SDPA needs no N x N tensor; a padding mask is one row and broadcasts.
        plain_causal = self.is_causal and self.key_mask is None and self.mask is None
        mask = None if plain_causal else self._score_addition(every)
        for piece in values.to(self.dtype).split(self.width, dim=-1):
            # SDPA forms no N x N matrix only if the values are as wide as the head and lie row by row; a QR factor does not.
            full = F.pad(piece, (0, self.width - piece.shape[-1])).contiguous()
            out = F.scaled_dot_product_attention(
                self.q, self.k, full, attn_mask=mask, is_causal=plain_causal, scale=self.scale
            )
            pieces.append(out[..., : piece.shape[-1]])
        return torch.cat(pieces, dim=-1)

    def _score_addition(self, index: Tensor) -> Tensor | None:
        """What is added to the scores of these rows, broadcasting to (B, H, R, Nk); None for nothing."""
        if self.mask is not None:
            mask = self.mask if self.mask.shape[-2] == 1 else self.mask[..., index, :]
            return _additive(mask, self.dtype)
        allowed = None
        if self.key_mask is not None:
            allowed = self.key_mask[:, None, None]
        if self.is_causal:
            past = torch.arange(self.shape[3], device=self.device) <= index[:, None]
            allowed = past if allowed is None else allowed & past
        return None if allowed is None else _additive(allowed, self.dtype)


def _additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    if mask.dtype != torch.bool:
        return mask.to(dtype)
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill(~mask, -torch.inf)


def _allowed(mask: Tensor, shape: tuple[int, int, int, int]) -> Tensor:
    """Which pairs a mask lets through, (B, H, Nq, Nk)."""
    # A model's own masks use the dtype's lowest number for "never"; half of it is beyond any score.
    allowed = mask if mask.dtype == torch.bool else mask > torch.finfo(mask.dtype).min / 2
    return allowed.expand(shape)


def _keys_seen(mask: Tensor, shape: tuple[int, int, int, int]) -> Tensor:
    """A key that no query may look at is padding: (B, Nk)."""
    return _allowed(mask, shape).any(dim=2).any(dim=1)


def _is_triangular(mask: Tensor, shape: tuple[int, int, int, int]) -> bool:
    """Whether no query may look ahead; then the matrix has its eigenvalues on its diagonal."""
    return shape[2] == shape[3] and not bool(_allowed(mask, shape).triu(1).any())
