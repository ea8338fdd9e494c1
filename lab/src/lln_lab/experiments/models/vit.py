"""A vision transformer (transformers' ViT, pre-norm) with any member of the zoo for its attention."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor
from transformers import ViTConfig, ViTForImageClassification
from transformers.modeling_outputs import ImageClassifierOutput
from transformers.models.vit.modeling_vit import ViTMLP

from lln.zoo import registry
from lln.zoo.encoder import matched_width
from lln_lab.experiments.models.roberta import classification_loss
from lln_lab.experiments.models.swap import AttentionOfLayer, Residual, WholeLayer, members


@dataclass(frozen=True)
class Size:
    layers: int = 12
    width: int = 128
    heads: int = 8
    feed_forward: int = 512
    picture: int = 64
    patch: int = 8
    dropout: float = 0.0

    @property
    def length(self) -> int:
        """Patches and the class token."""
        return (self.picture // self.patch) ** 2 + 1


class ImageClassifier(ViTForImageClassification):
    def __init__(self, size: Size, classes: int, name: str, options: dict[str, Any] | None = None) -> None:
        config = ViTConfig(
            hidden_size=size.width,
            num_hidden_layers=size.layers,
            num_attention_heads=size.heads,
            intermediate_size=size.feed_forward,
            image_size=size.picture,
            patch_size=size.patch,
            hidden_dropout_prob=size.dropout,
        )
        config.num_labels = classes
        super().__init__(config)
        made = members(
            name, embed_dim=size.width, num_heads=size.heads, layers=size.layers, max_length=size.length,
            options=options or {},
        )  # fmt: skip
        layers: Any = self.vit.layers
        for number, member in enumerate(made):
            if registry.card(name).replaces_feed_forward:
                layers[number] = WholeLayer(Residual(member, size.dropout))
                continue
            layers[number].attention = AttentionOfLayer(member)
            width = matched_width(member, size.width, size.feed_forward)
            if width != size.feed_forward:
                layers[number].mlp = ViTMLP(ViTConfig(**{**config.to_dict(), "intermediate_size": width}))
                layers[number].mlp.apply(self._init_weights)

    def forward(self, pixel_values: Tensor, labels: Tensor | None = None) -> ImageClassifierOutput:  # type: ignore[override]
        hidden = self.vit(pixel_values).last_hidden_state[:, 0]
        logits = self.classifier(hidden)
        loss: Any = classification_loss(logits, labels)
        return ImageClassifierOutput(loss=loss, logits=logits)
