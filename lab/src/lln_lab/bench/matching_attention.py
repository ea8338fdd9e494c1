"""LLN attention of a Hugging Face encoder, matched by a given method: to train with it, or to put it in softmax's place."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface

from lln.attention import lln_attention, lln_diag_attention
from lln.hf.attention.masks import padding_mask
from lln.matching import match_moments

BLOCK = 64


@dataclass(frozen=True)
class Matched:
    """One way to attend. It is registered under its name; batches must be without padding."""

    method: str  # of match_moments
    center_keys: bool = False  # subtract each sample's mean key
    blocks: bool = False  # LLN+Diag, each half

    @property
    def name(self) -> str:
        parts = ("LLN+Diag" if self.blocks else "LLN", "mean key subtracted" if self.center_keys else "", self.method)
        return ", ".join(filter(None, parts))

    def register(self) -> str:
        AttentionInterface.register(self.name, self)
        AttentionMaskInterface.register(self.name, padding_mask)
        return self.name

    def __call__(
        self,
        module: nn.Module,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        attention_mask: Any = None,
        scaling: float | None = None,
        **_: Any,
    ) -> tuple[Tensor, None]:
        alpha, beta = match_moments(q, k, method=self.method, scale=scaling, center_keys=self.center_keys)
        bias = -beta * k.mean(dim=2, keepdim=True) if self.center_keys else None
        if self.blocks:
            out = lln_diag_attention(q, k, v, alpha, beta, feature_bias=bias, block_size=BLOCK, scale=scaling)
        else:
            out = lln_attention(q, k, v, alpha, beta, feature_bias=bias)
        return out.transpose(1, 2).contiguous(), None
