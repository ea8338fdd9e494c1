"""One call of softmax attention, as `scaled_dot_product_attention` takes it, read so that a linear attention can answer it.

A linear attention never forms the N x N scores. Of all masks it can honour three: keys that do not count (padding), the causal
one, and both together. Any other mask, or a bias on the scores, is refused.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


class CannotReplace(ValueError):
    """Why a linear attention cannot stand in for a call."""


@dataclass(frozen=True)
class AttentionCall:
    """q (B, Hq, Nq, D), k (B, Hk, Nk, D), v (B, Hk, Nk, Dv), and what is asked of them."""

    q: Tensor
    k: Tensor
    v: Tensor
    key_mask: Tensor | None  # (B, Nk), True where the key counts
    causal: bool
    scale: float
    dropout: float
    lead: tuple[int, ...]  # the leading dimensions that q came with, to give the output back in
    cu_seqlens: None = None  # packed sequences are Hugging Face's

    @property
    def cross(self) -> bool:
        """Whether queries and keys differ in number, so that there are no blocks to compare them in."""
        return self.q.shape[2] != self.k.shape[2]

    def shaped(self, out: Tensor) -> Tensor:
        """(B, Hq, Nq, Dv) in the leading dimensions of the query."""
        return out.reshape(*self.lead, *out.shape[-2:])


def read_call(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    look: bool = True,
) -> AttentionCall:
    """The arguments of `torch.nn.functional.scaled_dot_product_attention`.

    look: read the values of an N x N mask to see what it is. Where that would wait for a device, a caller who has looked before
        passes False, with is_causal as it was then.
    """
    if query.dim() < 3 or query.dim() != key.dim() or key.dim() != value.dim():
        raise CannotReplace(
            f"query, key and value must be (batch..., heads, length, size), got {tuple(query.shape)}, {tuple(key.shape)} and "
            f"{tuple(value.shape)}"
        )
    lead = tuple(query.shape[:-2])
    q, k, v = (_four_dimensions(x) for x in (query, key, value))
    if q.shape[0] != k.shape[0] or (q.shape[1] != k.shape[1] and not enable_gqa):
        raise CannotReplace(
            f"queries and keys must agree in batch and heads, got {tuple(query.shape)}, {tuple(key.shape)}"
        )
    if is_causal and attn_mask is not None and look:
        raise CannotReplace("is_causal=True together with a mask")
    key_mask, causal = None, is_causal
    if attn_mask is not None:
        key_mask, causal = read_mask(attn_mask, q, k, look=look, causal=is_causal)
    if causal and q.shape[2] != k.shape[2]:
        raise CannotReplace(
            f"{q.shape[2]} queries for {k.shape[2]} keys, causal: a cache of all keys, where a linear attention has a state"
        )
    return AttentionCall(
        q, k, v, key_mask, causal, q.shape[-1] ** -0.5 if scale is None else float(scale), dropout_p, lead
    )


def read_mask(mask: Tensor, q: Tensor, k: Tensor, *, look: bool, causal: bool) -> tuple[Tensor | None, bool]:
    """(B, Nk) of the keys that count, or None where all do; and whether it is causal."""
    counts = mask if mask.dtype == torch.bool else _counting(mask, look)
    queries, keys, batch = q.shape[2], k.shape[2], q.shape[0]
    while counts.dim() < 4:
        counts = counts[None]
    if counts.dim() > 4:
        counts = counts.flatten(0, counts.dim() - 4)
    if counts.shape[1] != 1:
        if look and not bool((counts == counts[:, :1]).all()):
            raise CannotReplace("a mask that differs from head to head")
        counts = counts[:, :1]
    counts = counts.expand(counts.shape[0], 1, counts.shape[2], keys)[:, 0]  # (B or 1, Nq or 1, Nk)
    if counts.shape[0] not in (1, batch):
        raise CannotReplace(f"a mask for {counts.shape[0]} samples where there are {batch}")
    if counts.shape[1] == 1:
        return _some(counts[:, 0].expand(batch, keys), look), causal
    last = counts[:, -1]  # the last query of a causal sequence sees every key that counts
    if not look:
        return last.expand(batch, keys), causal
    if bool((counts == last[:, None]).all()):
        return _some(last.expand(batch, keys), look), False
    triangle = torch.ones(queries, keys, dtype=torch.bool, device=counts.device).tril()
    if queries == keys and bool((counts == (last[:, None] & triangle)).all()):
        return _some(last.expand(batch, keys), look), True
    raise CannotReplace(
        f"a mask of {queries} x {keys} that is neither padding nor causal: a linear attention cannot leave out single pairs"
    )


def _counting(mask: Tensor, look: bool) -> Tensor:
    """An additive mask as True where a key counts; anything but 0 and very negative numbers is a bias on the scores."""
    counts = mask == 0
    if look and not bool((counts | (mask <= -1e4)).all()):
        raise CannotReplace("a bias on the scores (an additive mask with values other than 0 and -inf)")
    return counts


def _some(counts: Tensor, look: bool) -> Tensor | None:
    return None if look and bool(counts.all()) else counts


def _four_dimensions(x: Tensor) -> Tensor:
    return x[None] if x.dim() == 3 else x.flatten(0, x.dim() - 4)


def sdpa_arguments(*args: Any, **kwargs: Any) -> dict[str, Any]:
    """The arguments of a call of `scaled_dot_product_attention`, by name."""
    names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
    return {**dict(zip(names, args, strict=False)), **kwargs}
