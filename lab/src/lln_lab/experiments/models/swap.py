"""Any member of the zoo in the layers of a Hugging Face model, with as many weights as the softmax model has.

A member brings its own projections, so it takes the place of the layer's attention, projections included; members that
replace the feed-forward layer, too (FLASH, TNN), take the place of the whole layer. As in `lln.zoo.encoder`, a member with
weights of its own gets a narrower feed-forward layer.
"""

from typing import Any

from torch import Tensor, nn

from lln.zoo import registry


class Residual(nn.Module):
    """after(x + member(before(x))): pre-norm models have a norm before, post-norm models one after."""

    def __init__(
        self,
        member: nn.Module,
        dropout: float = 0.0,
        before: nn.Module | None = None,
        after: nn.Module | None = None,
        is_causal: bool = False,
    ) -> None:
        super().__init__()
        self.member = member
        self.is_causal = is_causal
        self.dropout = nn.Dropout(dropout)
        self.before = nn.Identity() if before is None else before
        self.after = nn.Identity() if after is None else after

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        mixed: Tensor = self.after(x + self.dropout(self.member(self.before(x), mask, self.is_causal)))
        return mixed


class AttentionOfLayer(nn.Module):
    """Stands where Hugging Face's layers have their attention: (hidden states, mask) -> (hidden states, no weights)."""

    def __init__(self, mixing: nn.Module) -> None:
        super().__init__()
        self.mixing = mixing  # the member itself, or `Residual` where the attention's module holds norm and residual

    def forward(self, hidden_states: Tensor, attention_mask: Tensor | None = None, **_: Any) -> tuple[Tensor, None]:
        return self.mixing(hidden_states, attention_mask), None


class WholeLayer(nn.Module):
    """Stands where Hugging Face's encoders have a layer."""

    def __init__(self, mixing: nn.Module) -> None:
        super().__init__()
        self.mixing = mixing

    def forward(self, hidden_states: Tensor, attention_mask: Tensor | None = None, *_: Any, **__: Any) -> Tensor:
        out: Tensor = self.mixing(hidden_states, attention_mask)
        return out


def members(
    name: str, *, embed_dim: int, num_heads: int, layers: int, max_length: int, options: dict[str, Any]
) -> list[nn.Module]:
    """One member for each layer."""
    shape = {"embed_dim": embed_dim, "num_heads": num_heads, "max_length": max_length}
    chosen = [{**registry.layer_options(name, layer, layers), **options} for layer in range(layers)]
    return [registry.build(name, **shape, **each) for each in chosen]
