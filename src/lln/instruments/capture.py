"""Seeing attention happen inside any model, without asking the model for its weights.

While a `Recorder` listens, it sees, wherever in the model they are called:

- `scaled_dot_product_attention`: its q, k, mask, scale;
- a softmax over the last axis of a (B, H, Nq, Nk) tensor inside a watched module: its output is the attention matrix, and
  the matrix product before it, of (B, H, Nq, D) with (B, H, D, Nk), gave q and k;
- `lln_attention` and `lln_diag_attention`, by whatever name a module of this package has imported them.

Everything else runs as it did. Nothing of this exists outside the `with` block. Code inside `torch.compile` is not seen.
"""

import inspect
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from lln.instruments.attention import Attention
from lln.instruments.diagonal import BlockDiagonalAttention, MixtureAttention
from lln.instruments.given import DenseAttention
from lln.instruments.linear import LLNAttention
from lln.instruments.softmax import SoftmaxAttention

_SOFTMAX = {F.softmax, torch.softmax, Tensor.softmax}
_PRODUCT = {torch.matmul, Tensor.matmul, Tensor.__matmul__, torch.bmm}


@dataclass(frozen=True)
class Captured:
    """One call of attention: where, of what kind, its inputs for the watched samples, and how to look at its matrix."""

    module: str
    kind: str  # 'softmax', 'lln' or 'lln_diag'
    q: Tensor | None  # (samples, Hq, Nq, D)
    k: Tensor | None
    build: Callable[[], Attention]
    scale: float | None = None
    alpha: Tensor | None = None  # (samples, Hq, 1, D)
    beta: Tensor | None = None
    key_padding_mask: Tensor | None = None


class Recorder(TorchFunctionMode):
    """Collects what attention did to the first `samples` samples of a batch, as long as it listens."""

    def __init__(self, samples: int, current_module: Callable[[], str | None]) -> None:
        super().__init__()
        self.samples = samples
        self.calls: list[Captured] = []
        self._current_module = current_module
        self._inside_own_attention = False
        self._product: tuple[torch.Size, Tensor, Tensor] | None = None
        self._thread = threading.get_ident()
        self._rebound: list[tuple[Any, str, Any]] = []

    def __enter__(self) -> "Recorder":
        self._rebind()
        super().__enter__()
        return self

    def __exit__(self, *exc: Any) -> None:
        super().__exit__(*exc)
        for module, name, original in self._rebound:
            setattr(module, name, original)
        self._rebound.clear()

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        result = function(*args, **kwargs)
        where = self._current_module()
        if where is None or self._inside_own_attention:
            return result
        if function is F.scaled_dot_product_attention:
            self._record_sdpa(where, *args, **kwargs)
        elif function in _PRODUCT:
            self._remember_product(result, *args)
        elif function in _SOFTMAX:
            self._record_softmax(where, result, args, kwargs)
        return result

    def _record_sdpa(
        self, where: str, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None,
        dropout_p: float = 0.0, is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
    ) -> None:  # fmt: skip
        if query.dim() != 4:
            return
        q, k = self._keep(query), self._keep(key)
        mask = (
            None
            if attn_mask is None
            else self._keep(attn_mask)
            if attn_mask.shape[0] > 1
            else attn_mask.detach().clone()
        )

        def build() -> Attention:
            return SoftmaxAttention(q, k, scale=scale, is_causal=is_causal, mask=mask)

        self.calls.append(Captured(where, "softmax", q, k, build, scale))

    def _remember_product(self, result: Tensor, left: Any, right: Any, *_: Any) -> None:
        if isinstance(result, Tensor) and result.dim() == 4:
            self._product = (result.shape, left, right)

    def _record_softmax(self, where: str, result: Tensor, args: Any, kwargs: dict[str, Any]) -> None:
        axis = kwargs.get("dim", args[1] if len(args) > 1 else None)
        if not isinstance(result, Tensor) or result.dim() != 4 or axis not in (-1, 3):
            return
        matrix = self._keep(result)
        q = k = None
        if self._product is not None and self._product[0] == result.shape:
            q, k = self._keep(self._product[1]), self._keep(self._product[2]).mT
        self._product = None

        def build() -> Attention:
            square = matrix.shape[2] == matrix.shape[3]
            seen = (matrix > 0).any(2).any(1)  # a key that nobody looks at is padding
            return DenseAttention(matrix, row_mask=seen if square and not seen.all() else None)

        self.calls.append(Captured(where, "softmax", q, k, build))

    def _keep(self, x: Tensor) -> Tensor:
        return x.detach()[: self.samples].clone()

    def _rebind(self) -> None:
        """Listen at this package's own attention functions, under every name they were imported by."""
        from lln import attention, dense

        watched: list[tuple[Any, str, Callable[..., None] | None]] = [
            (attention, "lln_attention", self._record_lln),
            (attention, "lln_diag_attention", self._record_lln_diag),
            (dense, "lln_matrix", None),  # matrices for looking at: their softmax is no attention of its own
            (dense, "block_diagonal_matrix", None),
        ]
        for home, name, record in watched:
            original = getattr(home, name)
            listening = self._listening(original, record)
            for module in [m for n, m in sys.modules.items() if n == "lln" or n.startswith("lln.")]:
                if getattr(module, name, None) is original:
                    setattr(module, name, listening)
                    self._rebound.append((module, name, original))

    def _listening(self, original: Callable[..., Any], record: Callable[..., None] | None) -> Callable[..., Any]:
        signature = inspect.signature(original)

        def attention(*args: Any, **kwargs: Any) -> Any:
            where = self._current_module()
            if where is None or self._inside_own_attention or threading.get_ident() != self._thread:
                return original(*args, **kwargs)
            self._inside_own_attention = True
            try:
                result = original(*args, **kwargs)
            finally:
                self._inside_own_attention = False
            if record is None:
                return result
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            given = bound.arguments
            if given["state"] is None:  # a decoding step has no matrix of its own
                for sequence in self._sequences(given):
                    record(where, sequence)
            return result

        return attention

    def _sequences(self, given: dict[str, Any]) -> list[dict[str, Any]]:
        """The watched samples with their own alpha and beta; packed sequences one by one."""
        q, k, mask, edges = given["q"], given["k"], given["key_padding_mask"], given["cu_seqlens"]
        alpha, beta = given["alpha"], given["beta"]
        if alpha is None or beta is None:
            from lln.matching import match_moments

            matched = match_moments(q, k, key_padding_mask=mask, cu_seqlens=edges, scale=given.get("scale"))
            alpha, beta = (m if own is None else own for m, own in zip(matched, (alpha, beta), strict=True))
        feature_bias = 0.0 if given["feature_bias"] is None else given["feature_bias"]
        parameters = {"alpha": alpha, "beta": beta, "feature_bias": feature_bias}
        if edges is None:
            chosen = {n: _first(x, slice(0, self.samples)) for n, x in parameters.items()}
            mask = None if mask is None else self._keep(mask)
            return [{**given, **chosen, "q": self._keep(q), "k": self._keep(k), "key_padding_mask": mask}]
        pieces = []
        for at in range(min(self.samples, len(edges) - 1)):
            cut = slice(int(edges[at]), int(edges[at + 1]))
            chosen = {n: _first(x, slice(at, at + 1)) for n, x in parameters.items()}
            pieces.append({**given, **chosen, "q": q[:, :, cut].detach().clone(), "k": k[:, :, cut].detach().clone()})
        return pieces

    def _record_lln(self, where: str, given: dict[str, Any]) -> None:
        self.calls.append(_captured(where, "lln", given, lambda: _lln(given)))

    def _record_lln_diag(self, where: str, given: dict[str, Any]) -> None:
        mix = given["mix"].detach().clone() if isinstance(given["mix"], Tensor) else given["mix"]

        def build() -> Attention:
            blocks = BlockDiagonalAttention(
                given["q"], given["k"], given["block_size"], scale=given["scale"],
                key_padding_mask=given["key_padding_mask"], is_causal=given["is_causal"],
            )  # fmt: skip
            return MixtureAttention(_lln(given), blocks, mix)

        self.calls.append(_captured(where, "lln_diag", given, build))


def _captured(where: str, kind: str, given: dict[str, Any], build: Callable[[], Attention]) -> Captured:
    return Captured(
        where, kind, given["q"], given["k"], build, given.get("scale"),
        torch.as_tensor(given["alpha"]), torch.as_tensor(given["beta"]), given["key_padding_mask"],
    )  # fmt: skip


def _lln(given: dict[str, Any]) -> LLNAttention:
    return LLNAttention(
        given["q"], given["k"], given["alpha"], given["beta"], feature_bias=given["feature_bias"],
        key_padding_mask=given["key_padding_mask"], is_causal=given["is_causal"],
    )  # fmt: skip


def _first(x: Any, which: slice) -> Any:
    """The entries of the watched samples of something that broadcasts to (B, H, 1, D)."""
    if not isinstance(x, Tensor):
        return x
    return x.detach()[which].clone() if x.dim() == 4 and x.shape[0] > 1 else x.detach().clone()
