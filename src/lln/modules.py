"""Layers: LLN attention as close to torch.nn.MultiheadAttention as makes sense, and the encoder layer of Figure 3."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lln.attention import lln_attention, lln_diag_attention
from lln.dense import block_diagonal_matrix, lln_matrix
from lln.moment_matcher import MomentMatcher
from lln.state import LLNState


class LLNAttention(nn.Module):
    """Multi-head LLN attention (eq. 8) with projections, after torch.nn.MultiheadAttention.

    Args:
        embed_dim, num_heads, kdim, vdim, bias, batch_first, dropout: as torch.nn.MultiheadAttention has them, but for
            batch_first, which is True by default, and dropout: the weights of a linear attention are never formed, so
            it acts on the output of each branch.
        num_key_heads: fewer key and value heads than query heads (grouped queries).
        causal: position i attends to positions up to i; then a state can be carried along.
        matching: how alpha and beta are found, a `MomentMatcher` or its mode: 'sample' (statistics of each sample; not when
            causal), 'running', 'fixed' or 'learnable'. Default: 'sample', or 'running' when causal.
        matching_options: further arguments of `MomentMatcher`, such as target or subtract_mean_key.

    `key_padding_mask` is True where the key counts, everywhere in this package: the opposite of
    torch.nn.MultiheadAttention's.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = True,
        *,
        num_key_heads: int | None = None,
        causal: bool = False,
        matching: str | MomentMatcher | None = None,
        matching_options: dict[str, Any] | None = None,
        backend: str | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        key_heads = num_heads if num_key_heads is None else num_key_heads
        if embed_dim % num_heads != 0:
            raise ValueError(f"embed_dim must be a multiple of num_heads, got {embed_dim} and {num_heads}")
        if key_heads < 1 or num_heads % key_heads != 0:
            raise ValueError(f"num_heads must be a multiple of num_key_heads, got {num_heads} and {key_heads}")
        if not 0.0 <= dropout < 1.0:
            raise ValueError(f"dropout must be at least 0 and below 1, got {dropout}")
        self.embed_dim, self.num_heads, self.num_key_heads = embed_dim, num_heads, key_heads
        self.head_dim = embed_dim // num_heads
        self.dropout, self.batch_first, self.causal, self.backend = dropout, batch_first, causal, backend
        place: dict[str, Any] = {"device": device, "dtype": dtype}
        self.q_proj = nn.Linear(embed_dim, embed_dim, bias=bias, **place)
        self.k_proj = nn.Linear(kdim or embed_dim, key_heads * self.head_dim, bias=bias, **place)
        self.v_proj = nn.Linear(vdim or embed_dim, key_heads * self.head_dim, bias=bias, **place)
        self.out_proj = nn.Linear(embed_dim, embed_dim, bias=bias, **place)
        self.matcher = self._matcher(matching, matching_options or {})
        if device is not None:
            self.matcher.to(device)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """torch.nn.MultiheadAttention's: Xavier for the projections, zero biases."""
        for projection in (self.q_proj, self.k_proj, self.v_proj):
            nn.init.xavier_uniform_(projection.weight)
        for projection in (self.q_proj, self.k_proj, self.v_proj, self.out_proj):
            if projection.bias is not None:
                nn.init.zeros_(projection.bias)

    def forward(
        self,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = False,
        *,
        cu_seqlens: Tensor | None = None,
        state: LLNState | None = None,
        return_state: bool = False,
    ) -> tuple[Tensor, Tensor | LLNState | None]:
        """Output (as query) and, if asked for, the weights (B, H, Nq, Nk) or the state; else None.

        key and value are the query by default (self-attention). need_weights forms the N x N matrix, for inspection.
        """
        if need_weights and return_state:
            raise ValueError("ask for the weights or for the state, not for both")
        key = query if key is None else key
        value = key if value is None else value
        q = self._heads(self.q_proj(query), self.num_heads)
        k = self._heads(self.k_proj(key), self.num_key_heads)
        v = self._heads(self.v_proj(value), self.num_key_heads)
        alpha, beta, feature_bias = self.matcher(q, k, key_padding_mask, cu_seqlens)
        common: dict[str, Any] = {"feature_bias": feature_bias, "key_padding_mask": key_padding_mask}
        out = self._attend(
            q, k, v, alpha, beta, is_causal=self.causal, cu_seqlens=cu_seqlens,
            state=state, return_state=return_state, backend=self.backend, **common,
        )  # fmt: skip
        extra: Tensor | LLNState | None = None
        if return_state:
            out, extra = out
        if need_weights:
            if cu_seqlens is not None:
                raise ValueError("the weights of packed sequences are not one matrix: unpack them to look at them")
            extra = self._weights(q, k, alpha, beta, **common)
        return self.out_proj(self._merge(out)), extra

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, alpha: Tensor, beta: Tensor, **options: Any) -> Any:
        result = lln_attention(q, k, v, alpha, beta, **options)
        if options["return_state"]:
            return self._drop(result[0]), result[1]
        return self._drop(result)

    def _weights(self, q: Tensor, k: Tensor, alpha: Tensor, beta: Tensor, **options: Any) -> Tensor:
        return lln_matrix(q, k, alpha, beta, is_causal=self.causal, **options)

    def _drop(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.dropout, self.training)

    def _matcher(self, matching: str | MomentMatcher | None, options: dict[str, Any]) -> MomentMatcher:
        if isinstance(matching, MomentMatcher):
            if options:
                raise ValueError("matching_options go with a mode; a MomentMatcher has its own")
            matcher = matching
        else:
            mode = matching or ("running" if self.causal else "sample")
            matcher = MomentMatcher(
                self.num_heads, self.head_dim, num_key_heads=self.num_key_heads, mode=mode, **options
            )
        if self.causal and matcher.mode == "sample":
            raise ValueError(
                "matching='sample' reads the whole sequence, the future too: a causal layer takes 'running', 'fixed' or "
                "'learnable'"
            )
        return matcher

    def _heads(self, x: Tensor, heads: int) -> Tensor:
        if not self.batch_first:
            x = x.transpose(0, 1)
        return x.unflatten(-1, (heads, -1)).transpose(1, 2)  # (B, H, N, D)

    def _merge(self, x: Tensor) -> Tensor:
        x = x.transpose(1, 2).flatten(2)
        return x if self.batch_first else x.transpose(0, 1)

    def extra_repr(self) -> str:
        return f"{self.embed_dim}, num_heads={self.num_heads}, causal={self.causal}, dropout={self.dropout}"


class LLNDiagAttention(LLNAttention):
    """Multi-head LLN+Diag (Section 4.2): LLN and softmax inside blocks, averaged as in the paper or mixed by head.

    Args beyond `LLNAttention`'s:
        block_size: positions a block has.
        mix: the weight of the LLN branch; 0.5 is the paper's average.
        learn_mix: learn one weight a head, started at `mix` and kept between 0 and 1 by a sigmoid.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *args: Any,
        block_size: int = 64,
        mix: float = 0.5,
        learn_mix: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(embed_dim, num_heads, *args, **options)
        if not 0.0 <= mix <= 1.0 or (learn_mix and mix in (0.0, 1.0)):
            raise ValueError(f"mix must be between 0 and 1 (strictly, to be learned), got {mix}")
        self.block_size = block_size
        logit = torch.logit(torch.full((num_heads,), mix, dtype=torch.float32, device=options.get("device")))
        self.mix_logit = nn.Parameter(logit) if learn_mix else None
        self._fixed_mix = mix

    @property
    def mix(self) -> Tensor | float:
        """The weight of the LLN branch: a number, or one a head when learned."""
        return self._fixed_mix if self.mix_logit is None else torch.sigmoid(self.mix_logit)

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, alpha: Tensor, beta: Tensor, **options: Any) -> Any:
        return lln_diag_attention(
            q, k, v, alpha, beta, mix=self.mix, block_size=self.block_size, branch_transform=self._drop, **options
        )

    def _weights(self, q: Tensor, k: Tensor, alpha: Tensor, beta: Tensor, **options: Any) -> Tensor:
        lln = super()._weights(q, k, alpha, beta, **options)
        diag = block_diagonal_matrix(
            q, k, block_size=self.block_size, key_padding_mask=options["key_padding_mask"], is_causal=self.causal
        )
        mix = torch.as_tensor(self.mix, dtype=lln.dtype, device=lln.device).reshape(1, -1, 1, 1)
        return torch.lerp(diag, lln, mix)

    def extra_repr(self) -> str:
        mix = "learned" if self.mix_logit is not None else self._fixed_mix
        return f"{super().extra_repr()}, block_size={self.block_size}, mix={mix}"


class LLNEncoderLayer(nn.Module):
    """The transformer layer of Figure 3, a drop-in for torch.nn.TransformerEncoderLayer, also inside nn.TransformerEncoder.

    Because torch's own container calls it, masks follow torch here: `src_key_padding_mask` is True (or -inf) where a
    position is padding, the opposite of `key_padding_mask` elsewhere in this package.

    Args beyond torch.nn.TransformerEncoderLayer's: attention, 'lln_diag' (default) or 'lln'; attention_options, further
    arguments of `LLNDiagAttention` or `LLNAttention`, such as causal, matching, block_size. batch_first is True by default.
    """

    def __init__(
        self,
        d_model: int,
        nhead: int,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: str | Callable[[Tensor], Tensor] = "relu",
        layer_norm_eps: float = 1e-5,
        batch_first: bool = True,
        norm_first: bool = False,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        attention: str = "lln_diag",
        attention_options: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        kinds = {"lln": LLNAttention, "lln_diag": LLNDiagAttention}
        if attention not in kinds:
            raise ValueError(f"unknown attention {attention!r}; there are {', '.join(map(repr, kinds))}")
        activations: dict[str, Callable[[Tensor], Tensor]] = {"relu": F.relu, "gelu": F.gelu}
        if isinstance(activation, str) and activation not in activations:
            raise ValueError(f"activation must be 'relu', 'gelu' or a function, got {activation!r}")
        place: dict[str, Any] = {"device": device, "dtype": dtype}
        self.self_attn = kinds[attention](
            d_model, nhead, dropout=dropout, bias=bias, batch_first=batch_first, **place, **(attention_options or {})
        )
        self.linear1 = nn.Linear(d_model, dim_feedforward, bias=bias, **place)
        self.linear2 = nn.Linear(dim_feedforward, d_model, bias=bias, **place)
        self.norm1 = nn.LayerNorm(d_model, eps=layer_norm_eps, bias=bias, **place)
        self.norm2 = nn.LayerNorm(d_model, eps=layer_norm_eps, bias=bias, **place)
        self.dropout = nn.Dropout(dropout)
        self.norm_first = norm_first
        self.activation = activations[activation] if isinstance(activation, str) else activation

    def forward(
        self,
        src: Tensor,
        src_mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Tensor:
        if is_causal and not self.self_attn.causal:
            raise ValueError("this layer is bidirectional: make it with attention_options={'causal': True}")
        if src_mask is not None and not is_causal:
            raise ValueError(
                "an N x N src_mask cannot be honoured by a linear attention; for causal attention make the layer with "
                "attention_options={'causal': True} and pass is_causal=True"
            )
        counts = None if src_key_padding_mask is None else _counting(src_key_padding_mask)
        if self.norm_first:
            x = src + self._attention(self.norm1(src), counts)
            return x + self._feed_forward(self.norm2(x))
        x = self.norm1(src + self._attention(src, counts))
        return self.norm2(x + self._feed_forward(x))

    def _attention(self, x: Tensor, counts: Tensor | None) -> Tensor:
        return self.dropout(self.self_attn(x, key_padding_mask=counts)[0])

    def _feed_forward(self, x: Tensor) -> Tensor:
        return self.dropout(self.linear2(self.dropout(self.activation(self.linear1(x)))))


def _counting(padding: Tensor) -> Tensor:
    """torch's padding mask, bool or the additive form its containers make of it, as True where the key counts."""
    return ~padding if padding.dtype == torch.bool else padding == 0
