"""What is read of a call of attention, whichever front saw it, and how a front shows the calls of a whole model.

A front runs the softmax model on its calibration data and shows every attention it computes: `lln.conversion.sites` for any
torch model, `lln.hf.conversion.watching` for Hugging Face. What is measured and fitted from them is the same.
"""

from collections.abc import Callable
from typing import Protocol, TypeVar

from torch import Tensor


class Call(Protocol):
    """q (B, Hq, Nq, D), k (B, Hk, Nk, D), v (B, Hk, Nk, Dv); packed sequences in one row, B = 1."""

    @property
    def q(self) -> Tensor: ...
    @property
    def k(self) -> Tensor: ...
    @property
    def v(self) -> Tensor: ...
    @property
    def key_mask(self) -> Tensor | None: ...  # (B, Nk), True where the key counts
    @property
    def cu_seqlens(self) -> Tensor | None: ...
    @property
    def scale(self) -> float: ...
    @property
    def causal(self) -> bool: ...
    @property
    def cross(self) -> bool: ...  # keys of another sequence, so that none is near


def rows_that_count(call: Call) -> Tensor | None:
    """(B, N): queries of padding do not count; they are the keys' tokens unless the attention is across sequences."""
    return None if call.cross or call.q.shape[2] != call.k.shape[2] else call.key_mask


Place = TypeVar("Place")  # what names an attention of a model: a site, or a module
Asked = TypeVar("Asked", bound=Call)
# A pass over the calibration data with softmax running: the function is given each call with its place and softmax's output,
# (B, Hq, Nq, Dv).
Show = Callable[[Callable[[Place, Asked, Tensor], None]], None]
