"""Layers: LLN attention with the interface of torch.nn.MultiheadAttention, and the encoder layer of Figure 3."""

import math
from collections.abc import Callable
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lln.attention import lln_attention, lln_diag_attention
from lln.dense import block_diagonal_matrix, lln_matrix
from lln.matching.matcher import MomentMatcher
from lln.near_far.state import NearFarState
from lln.nested import NoWeight, nested, padded
from lln.state import LLNState
from lln.torch_weights import arguments_of, load_torchs_names


class _Projection(nn.Linear):
    """A linear map that starts as those of torch.nn.MultiheadAttention do: Xavier, zero bias."""

    def reset_parameters(self) -> None:
        nn.init.xavier_uniform_(self.weight)
        if self.bias is not None:
            nn.init.zeros_(self.bias)


class _OutProjection(nn.Linear):
    """torch.nn.MultiheadAttention's last map: torch's own start for linear maps, but zero bias."""

    def reset_parameters(self) -> None:
        super().reset_parameters()
        if self.bias is not None:
            nn.init.zeros_(self.bias)


class LLNAttention(nn.Module):
    """Multi-head LLN attention (eq. 8) with projections, after torch.nn.MultiheadAttention.

    Args:
        embed_dim, num_heads, kdim, vdim, bias, batch_first, dropout: as in torch.nn.MultiheadAttention, with two
            differences. batch_first is True by default. Dropout acts on the output of each branch, because linear attention
            never forms its weights.
        num_key_heads: number of key and value heads, if fewer than query heads (grouped queries).
        causal: position i attends to positions up to i. Causal layers can carry a state.
        frame_size: with causal, attention is bidirectional inside frames of this many positions (`lln_attention`).
        matching: where alpha and beta come from: a `MomentMatcher` or its mode, 'sample' (each sample; not for causal layers),
            'running', 'fixed' or 'learnable'. Default: 'sample', or 'running' for causal layers. Also use 'running' for the
            cross-attention of a causal decoder, since 'sample' would look at later queries.
        matching_options: further arguments of `MomentMatcher`, such as target or subtract_mean_key.

    `key_padding_mask` follows torch: True (or -inf) marks padding. The functions' `key_mask` is the opposite.

    Arguments have the order of torch.nn.MultiheadAttention, so a layer can serve as self_attn or multihead_attn of torch's
    transformer layers.
    """

    # What torch.nn.TransformerEncoderLayer looks at before it takes a fused path that computes softmax from the weights
    # of its attention: there are none of that form here, so it calls the attention.
    in_proj_weight = NoWeight()
    in_proj_bias = None
    _qkv_same_embed_dim = False

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
        frame_size: int | None = None,
        matching: str | MomentMatcher | None = None,
        matching_options: dict[str, Any] | None = None,
        backend: str = "auto",
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
        self.options = {} if frame_size is None else {"frame_size": frame_size}
        place: dict[str, Any] = {"device": device, "dtype": dtype}
        self.q_proj = _Projection(embed_dim, embed_dim, bias=bias, **place)
        self.k_proj = _Projection(kdim or embed_dim, key_heads * self.head_dim, bias=bias, **place)
        self.v_proj = _Projection(vdim or embed_dim, key_heads * self.head_dim, bias=bias, **place)
        self.out_proj = _OutProjection(embed_dim, embed_dim, bias=bias, **place)
        self.register_load_state_dict_pre_hook(load_torchs_names)
        self.matcher = self._matcher(matching, matching_options or {})
        if device is not None:
            self.matcher.to(device)
        # A second time, for the sake of those who make a model on the meta device and then call the reset_parameters
        # of each of its modules in turn: they draw twice too, and so get the same weights from the same seed.
        self._draw_weights()

    @classmethod
    def from_torch(cls, mha: nn.MultiheadAttention, **options: Any) -> Self:
        """A layer with the weights of a torch module, to replace it. `options` override the layer's arguments.

        Weights that were trained with softmax also need fitting, which `lln.convert` does for a whole model.
        """
        layer = cls(**{**arguments_of(mha), **options})
        layer.load_state_dict(mha.state_dict())
        return layer.train(mha.training)

    def _draw_weights(self) -> None:
        """The projections as torch.nn.MultiheadAttention starts them: Xavier, zero biases."""
        for projection in (self.q_proj, self.k_proj, self.v_proj, self.out_proj):
            projection.reset_parameters()

    def reset_parameters(self) -> None:
        """Redraw all weights and reset alpha, beta and running statistics."""
        self._draw_weights()
        self._reset_without_drawing()

    def _reset_without_drawing(self) -> None:
        """What is not drawn at random, as it started: alpha, beta and running statistics."""
        self.matcher.reset_parameters()

    def forward(
        self,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = False,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = False,
        is_causal: bool = False,
        *,
        cu_seqlens: Tensor | None = None,
        state: LLNState | NearFarState | None = None,
        return_state: bool = False,
    ) -> tuple[Tensor, Tensor | LLNState | NearFarState | None]:
        """Return (output, extra). The output has the shape of query; extra is the weights, the state, or None.

        key and value default to query (self-attention). Without a batch, query is (Nq, E), key_padding_mask is (Nk,) and
        weights are (H, Nq, Nk); with one, weights are (B, H, Nq, Nk). need_weights computes this matrix, for inspection. It
        and average_attn_weights (the mean over heads) default to False, unlike in torch. attn_mask exists for torch's
        layers, which pass a causal mask with is_causal=True. A causal layer accepts that and refuses any other mask. The
        values of the mask are checked on the CPU only, and not in compiled graphs.
        """
        if query.is_nested:  # by torch's encoder, behind a first layer that is torch's own
            rows, padding = padded(query, key, value, key_padding_mask, self.batch_first)
            given: dict[str, Any] = {"cu_seqlens": cu_seqlens, "state": state, "return_state": return_state}
            found = self(rows, rows, rows, padding, need_weights, attn_mask, average_attn_weights, is_causal, **given)
            return nested(found[0], query), found[1]
        if need_weights and return_state:
            raise ValueError("need_weights and return_state cannot be combined")
        key = query if key is None else key
        value = key if value is None else value
        self._check_shapes(query, key, value)
        _check_causal(attn_mask, is_causal, self.causal, query.shape[self._length_dim(query)])
        batched = query.dim() == 3
        if not batched:
            query, key, value = (x.unsqueeze(0 if self.batch_first else 1) for x in (query, key, value))
            key_padding_mask = None if key_padding_mask is None else key_padding_mask[None]
        key_mask = None if key_padding_mask is None else _counting(key_padding_mask)
        q = self._heads(self.q_proj(query), self.num_heads)
        k = self._heads(self.k_proj(key), self.num_key_heads)
        v = self._heads(self.v_proj(value), self.num_key_heads)
        alpha, beta, feature_bias = self.matcher(q, k, key_mask, cu_seqlens)
        common: dict[str, Any] = {"feature_bias": feature_bias, "key_mask": key_mask}
        out = self._attend(
            q, k, v, alpha, beta, is_causal=self.causal, cu_seqlens=cu_seqlens,
            state=state, return_state=return_state, backend=self.backend, **self.options, **common,
        )  # fmt: skip
        extra: Tensor | LLNState | NearFarState | None = None
        if return_state:
            out, extra = out
        if need_weights:
            if cu_seqlens is not None:
                raise ValueError("packed sequences have no single weight matrix: unpack them to get weights")
            if self.options:
                raise ValueError("the weights of attention over frames cannot be shown: leave need_weights out")
            weights = self._weights(q, k, alpha, beta, **common)
            weights = weights.mean(dim=1) if average_attn_weights else weights
            extra = weights if batched else weights[0]
        result = self.out_proj(self._merge(out))
        return result if batched else result.squeeze(0 if self.batch_first else 1), extra

    def _check_shapes(self, query: Tensor, key: Tensor, value: Tensor) -> None:
        sizes = (self.q_proj.in_features, self.k_proj.in_features, self.v_proj.in_features)
        for name, x, size in zip(("query", "key", "value"), (query, key, value), sizes, strict=True):
            if x.dim() not in (2, 3) or x.shape[-1] != size or x.dim() != query.dim():
                form = "(batch, length, {0})" if self.batch_first else "(length, batch, {0})"
                raise ValueError(
                    f"{name} must be {form.format(size)}, or (length, {size}) without a batch, all three alike; "
                    f"got query {tuple(query.shape)}, key {tuple(key.shape)}, value {tuple(value.shape)}"
                )

    def _length_dim(self, x: Tensor) -> int:
        return 1 if x.dim() == 3 and self.batch_first else 0

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
    """Multi-head LLN+Diag (Section 4.2): a mixture of LLN and softmax inside blocks.

    Args beyond `LLNAttention`'s:
        block_size: positions per block.
        mix: the weight of the LLN branch; 0.5 is the paper's average.
        learn_mix: learn one weight per head, starting at `mix` and kept between 0 and 1 by a sigmoid.
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
        self._fixed_mix = mix
        self.mix_logit: nn.Parameter | None = None
        if learn_mix:
            self.mix_logit = nn.Parameter(torch.empty(num_heads, dtype=torch.float32, device=options.get("device")))
        self._reset_mix()

    def _reset_without_drawing(self) -> None:
        """What is not drawn at random, as it started: alpha, beta, running statistics and the mix."""
        super()._reset_without_drawing()
        self._reset_mix()

    def _reset_mix(self) -> None:
        if self.mix_logit is not None:
            nn.init.constant_(self.mix_logit, math.log(self._fixed_mix / (1 - self._fixed_mix)))

    @property
    def mix(self) -> Tensor | float:
        """Weight of the LLN branch: a number, or one per head if learned."""
        return self._fixed_mix if self.mix_logit is None else torch.sigmoid(self.mix_logit)

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, alpha: Tensor, beta: Tensor, **options: Any) -> Any:
        return lln_diag_attention(
            q, k, v, alpha, beta, mix=self.mix, block_size=self.block_size,
            branch_transform=self._drop if self.dropout > 0 and self.training else None, **options,
        )  # fmt: skip

    def _weights(self, q: Tensor, k: Tensor, alpha: Tensor, beta: Tensor, **options: Any) -> Tensor:
        lln = super()._weights(q, k, alpha, beta, **options)
        diag = block_diagonal_matrix(
            q, k, block_size=self.block_size, key_mask=options["key_mask"], is_causal=self.causal
        )
        mix = torch.as_tensor(self.mix, dtype=lln.dtype, device=lln.device).reshape(1, -1, 1, 1)
        return torch.lerp(diag, lln, mix)

    def extra_repr(self) -> str:
        mix = "learned" if self.mix_logit is not None else self._fixed_mix
        return f"{super().extra_repr()}, block_size={self.block_size}, mix={mix}"


class LLNEncoderLayer(nn.Module):
    """The transformer layer of Figure 3: replaces torch.nn.TransformerEncoderLayer, also inside nn.TransformerEncoder.

    `src_key_padding_mask` follows torch: True (or -inf) marks padding. batch_first is True by default.

    Args beyond torch.nn.TransformerEncoderLayer's:
        attention: 'lln_diag' (default), 'lln' or 'lln_near_far'.
        attention_options: further arguments of `LLNDiagAttention`, `LLNAttention` or `NearFarAttention`, such as causal,
            matching or block_size.
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
        kinds = _kinds()
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
        self._draw_weights()  # a second time, as LLNAttention does and for its reason

    def reset_parameters(self) -> None:
        """Redraw all weights and reset alpha, beta, the mix and running statistics."""
        self._draw_weights()
        self.self_attn._reset_without_drawing()

    def _draw_weights(self) -> None:
        self.self_attn._draw_weights()
        for part in (self.linear1, self.linear2, self.norm1, self.norm2):
            part.reset_parameters()

    def forward(
        self,
        src: Tensor,
        src_mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Tensor:
        """src (B, N, E) through attention and feed-forward. Arguments are torch's; a causal layer takes is_causal=True."""
        if is_causal and not self.self_attn.causal:
            raise ValueError("this layer is bidirectional: make it with attention_options={'causal': True}")
        if src_mask is not None and not is_causal:
            raise ValueError(
                "an N x N src_mask cannot be honoured by a linear attention; for causal attention make the layer with "
                "attention_options={'causal': True} and pass is_causal=True"
            )
        masks = {
            "key_padding_mask": src_key_padding_mask,
            "attn_mask": src_mask,
            "is_causal": is_causal,
        }
        if self.norm_first:
            x = src + self._attention(self.norm1(src), **masks)
            return x + self._feed_forward(self.norm2(x))
        x = self.norm1(src + self._attention(src, **masks))
        return self.norm2(x + self._feed_forward(x))

    def _attention(self, x: Tensor, **masks: Any) -> Tensor:
        return self.dropout(self.self_attn(x, **masks)[0])

    def _feed_forward(self, x: Tensor) -> Tensor:
        return self.dropout(self.linear2(self.dropout(self.activation(self.linear1(x)))))


def _kinds() -> dict[str, type[LLNAttention]]:
    from lln.near_far.layer import NearFarAttention  # which is made of this file's layers

    return {"lln": LLNAttention, "lln_diag": LLNDiagAttention, "lln_near_far": NearFarAttention}


def _counting(padding: Tensor) -> Tensor:
    """torch's padding mask, bool or the additive form its containers make of it, as True where the key counts."""
    return ~padding if padding.dtype == torch.bool else padding == 0


def _check_causal(attn_mask: Tensor | None, is_causal: bool, layer_is_causal: bool, length: int) -> None:
    """is_causal must be what the layer was made for, and attn_mask, torch's N x N mask, must say the same."""
    if is_causal and not layer_is_causal:
        raise ValueError("is_causal=True, but this layer is bidirectional: make it with causal=True")
    if attn_mask is None:
        return
    if not is_causal:
        raise ValueError(
            f"an N x N attn_mask, here {tuple(attn_mask.shape)}, cannot be honoured by a linear attention. For causal "
            "attention make the layer with causal=True and pass is_causal=True; for padding use key_padding_mask"
        )
    if attn_mask.shape[-2:] != (length, length):
        raise ValueError(f"attn_mask must be ({length}, {length}), as query and key are, got {tuple(attn_mask.shape)}")
    if attn_mask.device.type == "cpu" and not torch.compiler.is_compiling() and not _is_causal(attn_mask):
        raise ValueError(
            "is_causal=True, but attn_mask is not the causal mask (True or -inf above the diagonal, False or 0 elsewhere): "
            "a linear attention cannot honour any other"
        )


def _is_causal(mask: Tensor) -> bool:
    length = mask.shape[-1]
    later = torch.ones(length, length, dtype=torch.bool).triu(1)
    expected = later if mask.dtype == torch.bool else torch.zeros(length, length).masked_fill(later, -torch.inf)
    return bool((mask == expected).all())
