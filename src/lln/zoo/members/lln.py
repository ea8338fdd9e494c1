"""Linear log-normal attention, alone, with softmax inside blocks, and the blocks alone.

    lln             out_i = sum_j P_ij v_j,  P_ij ∝ sum_l exp(alpha q_il + beta k_jl)            eq. 8
    lln_diag        the average of lln and block_diagonal                                       section 4.2
    block_diagonal  out_i = sum_j softmax_j(q_i.k_j / sqrt d) v_j over the keys of i's block     Qin et al. 2022b

arXiv 2311.13541. Time O(N d^2), O(N (d^2 + w d)) and O(N w d), memory O(N d). Thin over `lln.lln_attention` and its
relatives.
Departures: alpha and beta are matched to each sample and head by entropy (the package's default); causal attention,
which may not look at the whole sequence, uses the values matched at temperature 1 unless they are given.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lln.attention import block_diagonal_attention, lln_attention, lln_diag_attention
from lln.dense import block_diagonal_matrix, lln_matrix
from lln.matching import DEFAULT_TARGET, TARGETS
from lln.matching.match import METHODS
from lln.matching.matcher import MomentMatcher
from lln.zoo.card import Card
from lln.zoo.mechanism import Mechanism, Shape
from lln.zoo.registry import register

TYPICAL_LENGTH = 1024  # that causal alpha and beta are matched at where no max_length is given; the dependence is weak


@dataclass(frozen=True)
class LlnOptions:
    alpha: float | None = None  # None: matched
    beta: float | None = None
    target: str = DEFAULT_TARGET  # of the matching
    method: str | None = None  # of the matching: on a sample of the inputs, or "table"; see `lln.match_moments`
    subtract_mean_key: bool = False  # of the sample; softmax would not notice

    def __post_init__(self) -> None:
        if (self.alpha is None) != (self.beta is None):
            raise ValueError(f"give both alpha and beta or neither, got alpha={self.alpha} and beta={self.beta}")
        if self.target not in TARGETS:
            raise ValueError(f"unknown target {self.target!r}: choose one of {', '.join(map(repr, TARGETS))}")
        if self.method not in (None, *METHODS):
            raise ValueError(f"unknown method {self.method!r}: choose one of {', '.join(map(repr, METHODS))}")
        if self.method == "sample" and self.target != "entropy":
            raise ValueError(f"method='sample' matches the entropy, not target {self.target!r}: use method='table'")
        if self.method is not None and self.alpha is not None:
            raise ValueError("method says how alpha and beta are matched: leave it out, or leave alpha and beta out")
        if self.alpha is not None and self.subtract_mean_key:
            raise ValueError("the mean key is subtracted together with matching: leave alpha and beta out")


@dataclass(frozen=True)
class BlockOptions:
    block_size: int = 64

    def __post_init__(self) -> None:
        if self.block_size < 1:
            raise ValueError(f"block_size must be at least 1, got {self.block_size}")


@dataclass(frozen=True)
class LlnDiagOptions(LlnOptions):
    block_size: int = 64
    mix: float = 0.5  # weight of the LLN branch

    def __post_init__(self) -> None:
        super().__post_init__()
        BlockOptions(self.block_size)


def card(name: str, title: str, equation: str, **flags: Any) -> Card:
    return Card(
        name=name, title=title, equation=equation, memory="N d", growth="linear", causal=True, dense=True, **flags
    )


@register(
    card(
        "lln",
        "LLN attention",
        "exp(αq) (exp(βk)ᵀ v) / exp(αq) exp(βk)ᵀ 1, α and β matched to softmax",
        reference="arXiv 2311.13541",
        time="N d²",
        cross=True,
        equivariant=True,
        departures="α and β matched by entropy, per sample and head.",
    ),
    LlnOptions,
)
class Lln(Mechanism):
    upcast = False
    works_on_stretches = True

    def __init__(self, options: LlnOptions, shape: Shape) -> None:
        super().__init__(options, shape)
        target, centred = options.target, options.subtract_mean_key
        self.matcher = MomentMatcher(
            shape.num_heads, shape.head_dim, mode="sample", target=target, method=options.method,
            subtract_mean_key=centred,
        )  # fmt: skip
        length = shape.max_length or TYPICAL_LENGTH
        with torch.device("cpu"):  # only numbers are taken from it, wherever this module is made
            unit = MomentMatcher(1, shape.head_dim, mode="learnable", target=target, length=length)
        self.alpha = float(unit.log_alpha.detach().exp()) if options.alpha is None else options.alpha
        self.beta = float(unit.log_beta.detach().exp()) if options.beta is None else options.beta

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, query_mask: Tensor | None, is_causal: bool
    ) -> Tensor:
        alpha, beta, bias = self._scales(q, k, key_mask, query_mask, is_causal)
        out: Tensor = lln_attention(q, k, v, alpha, beta, feature_bias=bias, key_mask=key_mask, is_causal=is_causal)
        return out

    def matrix(
        self, q: Tensor, k: Tensor, key_mask: Tensor | None, query_mask: Tensor | None, is_causal: bool
    ) -> Tensor:
        alpha, beta, bias = self._scales(q, k, key_mask, query_mask, is_causal)
        return lln_matrix(q, k, alpha, beta, feature_bias=bias, key_mask=key_mask, is_causal=is_causal)

    def _scales(
        self, q: Tensor, k: Tensor, key_mask: Tensor | None, query_mask: Tensor | None, is_causal: bool
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """alpha, beta and feature bias: matched to the sample, unless given or causal."""
        if self.options.alpha is None and not is_causal:
            if key_mask is not None and query_mask is not None and query_mask.all() and q.shape[2] == k.shape[2]:
                # one key more, which does not count: matching would take as many queries as keys for one sequence
                k, key_mask = F.pad(k, (0, 0, 0, 1)), F.pad(key_mask, (0, 1))
            alpha, beta, bias = self.matcher(q, k, key_mask)
            return alpha, beta, bias
        given = (torch.full((1, 1, 1, 1), x, dtype=q.dtype, device=q.device) for x in (self.alpha, self.beta))
        return (*given, None)  # type: ignore[return-value]


@register(
    card(
        "lln_diag",
        "LLN+Diag attention",
        "(lln + block_diagonal) / 2",
        reference="arXiv 2311.13541",
        time="N (d² + w d)",
        departures="α and β matched by entropy, per sample and head.",
    ),
    LlnDiagOptions,
)
class LlnDiag(Lln):
    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, query_mask: Tensor | None, is_causal: bool
    ) -> Tensor:
        alpha, beta, bias = self._scales(q, k, key_mask, query_mask, is_causal)
        out: Tensor = lln_diag_attention(
            q, k, v, alpha, beta, feature_bias=bias, mix=self.options.mix, block_size=self.options.block_size,
            key_mask=key_mask, is_causal=is_causal,
        )  # fmt: skip
        return out

    def matrix(
        self, q: Tensor, k: Tensor, key_mask: Tensor | None, query_mask: Tensor | None, is_causal: bool
    ) -> Tensor:
        blocks = block_diagonal_matrix(q, k, block_size=self.options.block_size, key_mask=key_mask, is_causal=is_causal)
        mix = self.options.mix
        return mix * super().matrix(q, k, key_mask, query_mask, is_causal) + (1 - mix) * blocks


@register(
    card(
        "block_diagonal",
        "Block-diagonal softmax",
        "softmax(q kᵀ / √d) v inside blocks of w",
        reference="Qin et al. 2022b",
        time="N w d",
    ),
    BlockOptions,
)
class BlockDiagonal(Mechanism):
    upcast = False
    works_on_stretches = True

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, query_mask: Tensor | None, is_causal: bool
    ) -> Tensor:
        size = self.options.block_size
        return block_diagonal_attention(q, k, v, block_size=size, key_mask=key_mask, is_causal=is_causal)

    def matrix(
        self, q: Tensor, k: Tensor, key_mask: Tensor | None, query_mask: Tensor | None, is_causal: bool
    ) -> Tensor:
        size = self.options.block_size
        return block_diagonal_matrix(q, k, block_size=size, key_mask=key_mask, is_causal=is_causal)
