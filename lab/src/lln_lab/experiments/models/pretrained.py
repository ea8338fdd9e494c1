"""A pretrained BERT that classifies texts by the mean of its outputs: with softmax as it is, or converted in closed form.

    logits  =  W mean_i h_i + b,        h_i: the last hidden states of the tokens that count

Everything is fine-tuned, what the conversion fitted included. An encoder with P positions reads texts of N > P tokens by linear
interpolation between them: position n is its own position n (P - 1) / (N - 1).
"""

from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AutoConfig, AutoTokenizer, BertConfig, BertModel

import lln.hf
from lln_lab.experiments.check import tokens
from lln_lab.experiments.contestants import Contestant
from lln_lab.experiments.models.roberta import classification_loss, mean_of

KIND = "bert"
CONVERTED = {"lln": "lln", "lln_diag": "lln_diag", "near_far": "lln_near_far"}  # the zoo's name -> transformers'
TAKEN = ("target", "block_size", "neighbours", "first_tokens", "subtract_mean_key")  # the rest is fitted to the data
FITS = (
    "a BERT encoder in Hugging Face's layout, a folder with config.json, model.safetensors and tokenizer.json, "
    "such as all-MiniLM-L6-v2's, or such a model's name on the hub"
)


def read_encoder(name: str) -> tuple[Any, BertModel]:
    """The tokenizer and the encoder. Attention weights are not dropped, as linear attention has none to drop."""
    try:
        kind = AutoConfig.from_pretrained(name).model_type
        if kind != KIND:
            raise ValueError(f"it is a {kind}")
        tokenizer = AutoTokenizer.from_pretrained(name)
        encoder = BertModel.from_pretrained(name, add_pooling_layer=False, attention_probs_dropout_prob=0.0)
    except (OSError, ValueError) as reason:
        raise ValueError(f"{name} does not fit --model ({reason}); what fits: {FITS}") from reason
    return tokenizer, encoder.float()


def described(config: Any, model: str, length: int, calibration: int) -> dict[str, Any]:
    """What a run says of its encoder; a folder by its name only."""
    return {
        "encoder": Path(model).name if Path(model).is_dir() else model,
        "layers": config.num_hidden_layers,
        "width": config.hidden_size,
        "heads": config.num_attention_heads,
        "positions": config.max_position_embeddings,
        "length": length,
        "calibration": calibration,
    }


def shape_of(model: str | None) -> Any:
    """The encoder's configuration, for a check: all-MiniLM-L6-v2's shape where no model is given."""
    if model:
        return AutoConfig.from_pretrained(model)
    return BertConfig(hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536)


def refuse_unconvertible(contestant: Contestant) -> None:
    if contestant.name != "softmax" and contestant.name not in CONVERTED:
        raise ValueError(
            f"a pretrained encoder keeps softmax or is converted to {', '.join(CONVERTED)}; {contestant.name} has no "
            "conversion in closed form"
        )
    if fitted := sorted(set(contestant.options) - set(TAKEN)):
        raise ValueError(f"the conversion fits {', '.join(fitted)} to data; options that fit: {', '.join(TAKEN)}")


class PooledClassifier(nn.Module):
    """`encoder` is copied; `batches` are what the conversion is fitted to. The head is drawn first, alike for all."""

    def __init__(
        self, encoder: BertModel, classes: int, contestant: Contestant, length: int, batches: list[dict[str, Tensor]]
    ) -> None:
        super().__init__()
        self.head = nn.Linear(encoder.config.hidden_size, classes)
        nn.init.normal_(self.head.weight, std=encoder.config.initializer_range)
        nn.init.zeros_(self.head.bias)
        self.encoder = deepcopy(encoder)
        stretch(self.encoder, length)
        if contestant.name != "softmax":
            lln.hf.convert(self.encoder, CONVERTED[contestant.name], batches, **contestant.options)
            for part in self.encoder.modules():
                if isinstance(part, lln.hf.LLNParameters):
                    part.trainable()

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, labels: Tensor | None = None
    ) -> dict[str, Tensor]:
        hidden = self.encoder(input_ids, attention_mask=attention_mask).last_hidden_state
        logits = self.head(mean_of(hidden, attention_mask))
        loss = classification_loss(logits, labels)
        return {"logits": logits} if loss is None else {"loss": loss, "logits": logits}


@torch.no_grad()
def stretch(encoder: BertModel, length: int) -> None:
    """Room for `length` tokens, in place; an encoder that has it stays as it is."""
    embeddings: Any = encoder.embeddings
    own = embeddings.position_embeddings.weight
    if length <= len(own):
        return
    between = F.interpolate(own.T[None], size=length, mode="linear", align_corners=True)[0].T
    embeddings.position_embeddings = nn.Embedding.from_pretrained(between.contiguous(), freeze=False)
    places = torch.arange(length, device=own.device)[None]
    embeddings.register_buffer("position_ids", places, persistent=False)
    embeddings.register_buffer("token_type_ids", torch.zeros_like(places), persistent=False)
    encoder.config.max_position_embeddings = length


def invented(config: Any, classes: int, contestant: Contestant, length: int, layers: int) -> PooledClassifier:
    """A classifier of this shape with random weights, converted on random tokens, for a check."""
    sized = BertConfig(**{**config.to_dict(), "num_hidden_layers": layers, "attention_probs_dropout_prob": 0.0})
    encoder = BertModel(sized, add_pooling_layer=False).eval()
    texts = [{"input_ids": tokens(config.vocab_size, min(256, length), 2)}]
    return PooledClassifier(encoder, classes, contestant, length, texts)
