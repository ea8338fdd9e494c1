"""RoBERTa with any member of the zoo: masked and causal language models, classifiers, and a finder.

Layers, learned positions and initialisation are transformers' own; only the attention differs. RoBERTa has its norms after
the residuals; models of long sequences have them before (RoBERTa-PreLayerNorm), which small models from scratch need.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import (
    RobertaConfig,
    RobertaForMaskedLM,
    RobertaForSequenceClassification,
    RobertaModel,
    RobertaPreLayerNormConfig,
    RobertaPreLayerNormModel,
)
from transformers.modeling_outputs import MaskedLMOutput, SequenceClassifierOutput
from transformers.models.roberta import modeling_roberta
from transformers.models.roberta_prelayernorm import modeling_roberta_prelayernorm

import lln.hf
from lln.zoo import registry
from lln.zoo.encoder import matched_width
from lln_lab.experiments.models.batch_norm import BatchNorm
from lln_lab.experiments.models.swap import AttentionOfLayer, Residual, WholeLayer, members

PADDING = 1  # RoBERTa's own padding id: position numbers start after it


@dataclass(frozen=True)
class Size:
    layers: int = 4
    width: int = 128
    heads: int = 4
    feed_forward: int = 512
    length: int = 512
    dropout: float = 0.1


def configuration(size: Size, vocabulary: int, padding: int = PADDING, kind: Any = RobertaConfig, **more: Any) -> Any:
    lln.hf.register()
    made = kind(
        vocab_size=vocabulary,
        hidden_size=size.width,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        intermediate_size=size.feed_forward,
        max_position_embeddings=size.length + padding + 1,
        hidden_dropout_prob=size.dropout,
        attention_probs_dropout_prob=0.0,  # attention weights cannot be dropped in linear attention: none for all
        type_vocab_size=1,
        pad_token_id=padding,
        layer_norm_eps=1e-5,
        initializer_range=0.02
        * math.sqrt(768 / size.width),  # queries and keys as large as RoBERTa-base's at the start
        **more,
    )
    made._attn_implementation = "lln"  # brings the padding mask as (B, N); every layer's attention is replaced
    return made


def use_attention(
    model: RobertaModel | RobertaPreLayerNormModel,
    name: str,
    options: dict[str, Any],
    length: int,
    is_causal: bool = False,
) -> None:
    """Put the member into every layer, and match the number of weights by the feed-forward width."""
    config = model.config
    made = members(
        name, embed_dim=config.hidden_size, num_heads=config.num_attention_heads,
        layers=config.num_hidden_layers, max_length=length, options=options,
    )  # fmt: skip
    norm_at = "before" if isinstance(model, RobertaPreLayerNormModel) else "after"
    for number, member in enumerate(made):
        _initialise(member, config.initializer_range)
        norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        mixing = Residual(member, config.hidden_dropout_prob, **{norm_at: norm}, is_causal=is_causal)
        if registry.card(name).replaces_feed_forward:  # such a member brings its own norms before its parts
            model.encoder.layer[number] = WholeLayer(
                Residual(member, is_causal=is_causal) if norm_at == "before" else mixing
            )
            continue
        layer = model.encoder.layer[number]
        layer.attention = AttentionOfLayer(mixing)
        width = matched_width(member, config.hidden_size, config.intermediate_size)
        if width != config.intermediate_size:
            layer.intermediate, layer.output = _feed_forward(model, width)
            _initialise(layer.intermediate, config.initializer_range)
            _initialise(layer.output, config.initializer_range)


def _feed_forward(model: RobertaModel | RobertaPreLayerNormModel, width: int) -> tuple[nn.Module, nn.Module]:
    """The model's own kind of feed-forward layer, of another width."""
    config = type(model.config)(**{**model.config.to_dict(), "intermediate_size": width})
    if isinstance(model, RobertaPreLayerNormModel):
        own: Any = modeling_roberta_prelayernorm
        return own.RobertaPreLayerNormIntermediate(config), own.RobertaPreLayerNormOutput(config)
    return modeling_roberta.RobertaIntermediate(config), modeling_roberta.RobertaOutput(config)


class MaskedLanguageModel(RobertaForMaskedLM):
    """Predicts the masked tokens; the vocabulary's logits are made for those positions only."""

    def __init__(self, config: RobertaConfig, name: str, options: dict[str, Any] | None = None) -> None:
        super().__init__(config)
        use_attention(self.roberta, name, options or {}, _length(config))

    def forward(  # type: ignore[override]
        self, input_ids: Tensor, attention_mask: Tensor | None = None, labels: Tensor | None = None
    ) -> MaskedLMOutput:
        hidden = self.roberta(input_ids, attention_mask=attention_mask).last_hidden_state  # (B, N, E)
        if labels is None:
            return MaskedLMOutput(logits=self.lm_head(hidden))
        chosen = labels != -100
        logits = self.lm_head(hidden[chosen])
        loss: Any = F.cross_entropy(logits.float(), labels[chosen])
        return MaskedLMOutput(loss=loss, logits=logits)


class CausalLanguageModel(nn.Module):
    """Predicts every token from those before it, with norms before the residuals and the embedding as the output layer."""

    def __init__(self, size: Size, vocabulary: int, name: str, options: dict[str, Any] | None = None) -> None:
        super().__init__()
        config = configuration(size, vocabulary, kind=RobertaPreLayerNormConfig)
        self.decoder = RobertaPreLayerNormModel(config, add_pooling_layer=False)
        use_attention(self.decoder, name, options or {}, _length(config), is_causal=True)

    def logits(self, input_ids: Tensor) -> Tensor:
        """(B, N, vocabulary): what follows each token."""
        hidden = self.decoder(input_ids).last_hidden_state
        return F.linear(hidden, self.decoder.embeddings.word_embeddings.weight)

    def forward(self, input_ids: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """labels[i] is the token at i: position i - 1 is asked for it."""
        logits = self.logits(input_ids[:, :-1])
        return {"loss": F.cross_entropy(logits.flatten(0, 1).float(), labels[:, 1:].flatten())}


class SequenceClassifier(RobertaForSequenceClassification):
    """RoBERTa's classifier of the first token, for GLUE."""

    def __init__(self, config: RobertaConfig, name: str, options: dict[str, Any] | None = None) -> None:
        super().__init__(config)
        use_attention(self.roberta, name, options or {}, _length(config))

    def forward(  # type: ignore[override]
        self, input_ids: Tensor, attention_mask: Tensor | None = None, labels: Tensor | None = None
    ) -> SequenceClassifierOutput:
        hidden = self.roberta(input_ids, attention_mask=attention_mask).last_hidden_state
        logits = self.classifier(hidden)
        loss: Any = classification_loss(logits, labels)
        return SequenceClassifierOutput(loss=loss, logits=logits)


class LongClassifier(nn.Module):
    """The mean of an encoder's outputs, classified (Long Range Arena); two documents as [u, v, u v, u - v] (Retrieval).

    The means of a thousand tokens differ little from one sample to the next: `normalise` brings the differences to unit
    scale (over the batch), without which a small model stays at chance for hundreds of steps.
    """

    def __init__(
        self,
        size: Size,
        vocabulary: int,
        classes: int,
        name: str,
        options: dict[str, Any] | None = None,
        pairs: bool = False,
        normalise: bool = False,
        head: int | None = None,
    ) -> None:
        super().__init__()
        config = configuration(size, vocabulary, padding=0, kind=RobertaPreLayerNormConfig)
        self.encoder = RobertaPreLayerNormModel(config, add_pooling_layer=False)
        self.normalise = BatchNorm(size.width) if normalise else nn.Identity()
        width = size.width * (4 if pairs else 1)
        between = head or size.width
        self.head = nn.Sequential(nn.Linear(width, between), nn.GELU(), nn.Linear(between, classes))
        use_attention(self.encoder, name, options or {}, _length(config))  # last: what it draws changes nothing else

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        labels: Tensor | None = None,
        pair_ids: Tensor | None = None,
        pair_mask: Tensor | None = None,
    ) -> dict[str, Tensor]:
        means = [self._mean(input_ids, attention_mask)]
        if pair_ids is not None:
            assert pair_mask is not None
            means.append(self._mean(pair_ids, pair_mask))
        logits = self.classified(means)
        loss = classification_loss(logits, labels)
        return {"logits": logits} if loss is None else {"loss": loss, "logits": logits}

    def classified(self, means: list[Tensor]) -> Tensor:
        """Logits from the mean of one text or the means of two."""
        u, v = means[0], means[-1]
        logits: Tensor = self.head(u if len(means) == 1 else torch.cat([u, v, u * v, u - v], dim=-1))
        return logits

    def pooled(self, hidden: Tensor, mask: Tensor | None = None) -> Tensor:
        """The mean over the tokens that count, normalised."""
        mean: Tensor = self.normalise(mean_of(hidden, mask))
        return mean

    def _mean(self, ids: Tensor, mask: Tensor) -> Tensor:
        return self.pooled(self.encoder(ids, attention_mask=mask).last_hidden_state, mask)


class Finder(nn.Module):
    """A class at each token that asks (label >= 0): what it asks for stands elsewhere in the sequence.

    Every row asks equally often, A times; logits are (B, A, classes), a row for a row, as Trainer's gathering needs them.
    """

    def __init__(
        self, size: Size, vocabulary: int, classes: int, name: str, options: dict[str, Any] | None = None
    ) -> None:
        super().__init__()
        config = configuration(size, vocabulary, padding=0, kind=RobertaPreLayerNormConfig)
        self.encoder = RobertaPreLayerNormModel(config, add_pooling_layer=False)
        self.head = nn.Linear(size.width, classes)
        use_attention(self.encoder, name, options or {}, _length(config))  # last: what it draws changes nothing else

    def forward(self, input_ids: Tensor, labels: Tensor) -> dict[str, Tensor]:
        asked = labels >= 0
        logits: Tensor = self.head(self.encoder(input_ids).last_hidden_state[asked])
        loss = F.cross_entropy(logits.float(), labels[asked])
        return {"loss": loss, "logits": logits.unflatten(0, (input_ids.shape[0], -1))}


def mean_of(hidden: Tensor, mask: Tensor | None = None) -> Tensor:
    """(B, N, E) -> (B, E): the mean over the tokens that count."""
    counts = torch.ones_like(hidden[..., :1]) if mask is None else mask[..., None].to(hidden.dtype)
    return (hidden * counts).sum(dim=1) / counts.sum(dim=1).clamp(min=1)


def classification_loss(logits: Tensor, labels: Tensor | None) -> Tensor | None:
    if labels is None:
        return None
    if logits.shape[-1] == 1:
        return F.mse_loss(logits[:, 0].float(), labels.float())
    return F.cross_entropy(logits.float(), labels)


def _length(config: RobertaConfig) -> int:
    return int(config.max_position_embeddings) - int(config.pad_token_id or 0) - 1


def _initialise(module: nn.Module, deviation: float) -> None:
    """RoBERTa's own initialisation, for the linear layers that a member brings."""
    for part in module.modules():
        if isinstance(part, nn.Linear):
            nn.init.normal_(part.weight, std=deviation)
            if part.bias is not None:
                nn.init.zeros_(part.bias)
