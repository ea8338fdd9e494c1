"""Capture of attention calls inside any model, without asking the model for its weights.

While a `Recorder` is active, it sees these calls anywhere in the model:

- `scaled_dot_product_attention`: its q, k, mask, scale;
- a softmax over the last axis of a (B, H, Nq, Nk) tensor inside a watched module: its output is the attention matrix, and
  the matrix product before it, of (B, H, Nq, D) with (B, H, D, Nk), gave q and k;
- `lln_attention`, `lln_diag_attention` and `near_far_attention`, under any name, through `lln.observers`.
  Of near-far attention, only the part that is a distribution over keys is captured, (1 - m) near + m LLN with m the far share:
  the weights of the slope have both signs.

Everything else runs unchanged, and nothing remains after the `with` block. Code inside `torch.compile` is not seen.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from lln.instruments.attention import AttentionMatrix
from lln.instruments.diagonal import BlockDiagonalMatrix, MixtureMatrix
from lln.instruments.given import DenseMatrix
from lln.instruments.linear import LLNMatrix
from lln.instruments.softmax import SoftmaxMatrix
from lln.observers import is_inside, observers
from lln.ops.diag import Operands as DiagOperands
from lln.ops.lln import Operands as LLNOperands
from lln.ops.lln import compute_dtype
from lln.ops.near_far import Operands as NearFarOperands
from lln.ops.near_far import near_far

_SOFTMAX = {F.softmax, torch.softmax, Tensor.softmax}
_PRODUCT = {torch.matmul, Tensor.matmul, Tensor.__matmul__, torch.bmm}


@dataclass(frozen=True)
class Captured:
    """One call of attention: where, of what kind, its inputs for the watched samples, and how to look at its matrix."""

    module: str
    kind: str  # 'softmax', 'lln', 'lln_diag' or 'lln_near_far'
    q: Tensor | None  # (samples, Hq, Nq, D)
    k: Tensor | None
    build: Callable[[], AttentionMatrix]
    scale: float | None = None
    alpha: Tensor | None = None  # (samples, Hq, 1, D)
    beta: Tensor | None = None
    key_mask: Tensor | None = None


class Recorder(TorchFunctionMode):
    """Collects what attention did to the first `samples` samples of a batch, as long as it listens."""

    def __init__(self, samples: int, current_module: Callable[[], str | None]) -> None:
        super().__init__()
        self.samples = samples
        self.calls: list[Captured] = []
        self._current_module = current_module
        self._product: tuple[torch.Size, Tensor, Tensor] | None = None
        self._thread = threading.get_ident()

    def __enter__(self) -> "Recorder":
        observers.append(self._observe)
        super().__enter__()
        return self

    def __exit__(self, *exc: Any) -> None:
        super().__exit__(*exc)
        observers.remove(self._observe)

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        result = function(*args, **kwargs)
        where = self._current_module()
        if where is None or is_inside():
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

        def build() -> AttentionMatrix:
            return SoftmaxMatrix(q, k, scale=scale, is_causal=is_causal, mask=mask)

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

        def build() -> AttentionMatrix:
            square = matrix.shape[2] == matrix.shape[3]
            seen = (matrix > 0).any(2).any(1)  # a key that nobody looks at is padding
            return DenseMatrix(matrix, row_mask=seen if square and not seen.all() else None)

        self.calls.append(Captured(where, "softmax", q, k, build))

    def _keep(self, x: Tensor) -> Tensor:
        return x.detach()[: self.samples].clone()

    def _observe(self, operation: str, x: Any) -> None:
        """Called by this package's own attention functions with what they are about to compute."""
        where = self._current_module()
        if where is None or threading.get_ident() != self._thread or operation not in _KINDS:
            return
        if operation == "attention" and x.start is not None:  # a decoding step has no matrix of its own
            return
        for one in self._sequences(x):
            lln = one if operation == "attention" else one.lln
            build = partial(_MATRICES[operation], one)
            self.calls.append(
                Captured(
                    where, _KINDS[operation], one.q, one.k, build, None if operation == "attention" else one.scale,
                    lln.alpha[:, :, None], lln.beta[:, :, None], one.key_mask,
                )
            )  # fmt: skip

    def _sequences(self, x: Any) -> list[Any]:
        """The operands of the watched samples; packed sequences one by one."""
        if x.cu_seqlens is None:
            return [x._replace(**{n: self._keep(t) for n, t in x._asdict().items() if isinstance(t, Tensor)})]
        edges, by_sequence = x.cu_seqlens.tolist(), ("alpha", "beta", "bias")
        found = []
        for i in range(min(self.samples, len(edges) - 1)):
            at, changed = slice(edges[i], edges[i + 1]), {}
            for name, t in x._asdict().items():
                if isinstance(t, Tensor) and name != "cu_seqlens":
                    whole = name == "weights" or t.shape[2] == 1
                    cut = t[i : i + 1] if name in by_sequence else t if whole else t[:, :, at]
                    changed[name] = cut.detach().clone()
            found.append(x._replace(**changed, cu_seqlens=None))
        return found


_KINDS = {"attention": "lln", "diag": "lln_diag", "near_far": "lln_near_far"}


def _lln(x: LLNOperands) -> LLNMatrix:
    bias = 0.0 if x.bias is None else x.bias[:, :, None]
    return LLNMatrix(
        x.q, x.k, x.alpha[:, :, None], x.beta[:, :, None], feature_bias=bias, key_mask=x.key_mask, is_causal=x.is_causal
    )


def _lln_diag(x: DiagOperands) -> AttentionMatrix:
    blocks = BlockDiagonalMatrix(x.q, x.k, x.block_size, scale=x.scale, key_mask=x.key_mask, is_causal=x.is_causal)
    return MixtureMatrix(_lln(x.lln), blocks, x.weight)


def _near_far(x: NearFarOperands) -> DenseMatrix:
    q, k = (t.to(compute_dtype(t.dtype)) for t in (x.q, x.k))
    every_key = torch.eye(k.shape[2], dtype=k.dtype, device=k.device).expand(*k.shape[:2], -1, -1)
    weights = torch.tensor([0.0, 1.0, 0.0, 0.0], dtype=x.weights.dtype, device=k.device).expand_as(x.weights)
    return DenseMatrix(near_far(x._replace(q=q, k=k, v=every_key, weights=weights)).out, x.key_mask)


_MATRICES: dict[str, Callable[[Any], AttentionMatrix]] = {
    "attention": _lln,
    "diag": _lln_diag,
    "near_far": _near_far,
}
