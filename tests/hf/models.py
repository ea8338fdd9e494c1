"""One tiny random model for each family, the inputs it takes, and what its output is called."""

from typing import Any

import torch
from torch import Tensor
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    BertConfig,
    DeiTConfig,
    DistilBertConfig,
    GPT2Config,
    LlamaConfig,
    ModernBertConfig,
    Qwen2Config,
    Qwen3Config,
    RobertaConfig,
    ViTConfig,
)

import lln.hf  # noqa: F401

VOCABULARY = 40
_BERT = {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
_LLAMA = {**_BERT, "intermediate_size": 48, "num_key_value_heads": 2, "max_position_embeddings": 128}
_TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_IMAGE = {"image_size": 32, "patch_size": 4, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}

CONFIGS: dict[str, Any] = {
    "bert": lambda: BertConfig(**_BERT, intermediate_size=48),
    "roberta": lambda: RobertaConfig(**_BERT, intermediate_size=48, pad_token_id=1),
    "distilbert": lambda: DistilBertConfig(vocab_size=VOCABULARY, dim=32, n_layers=2, n_heads=4, hidden_dim=48),
    "modernbert": lambda: ModernBertConfig(
        **_BERT,
        intermediate_size=48,
        global_attn_every_n_layers=2,
        local_attention=8,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        cls_token_id=1,
        sep_token_id=2,
    ),
    "vit": lambda: ViTConfig(**_IMAGE, intermediate_size=48),
    "deit": lambda: DeiTConfig(**_IMAGE, intermediate_size=48),
    "llama": lambda: LlamaConfig(**_LLAMA, **_TOKENS),
    "qwen2": lambda: Qwen2Config(**_LLAMA, **_TOKENS),
    "qwen3": lambda: Qwen3Config(**_LLAMA, head_dim=8, **_TOKENS),
    "gpt2": lambda: GPT2Config(vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=4, n_positions=128, **_TOKENS),
}
ENCODERS = ("bert", "roberta", "distilbert", "modernbert")
IMAGE_MODELS = ("vit", "deit")
CAUSAL = ("llama", "qwen2", "qwen3", "gpt2")
TEXT = ENCODERS + CAUSAL
FAMILIES = TEXT + IMAGE_MODELS


def make(family: str, attention: str = "lln_diag", **options: Any) -> Any:
    """A random model in eval mode; causal ones get fixed alpha and beta."""
    torch.manual_seed(0)
    config = CONFIGS[family]()
    config.lln = {"block_size": 8, **({"alpha": 2.0, "beta": 2.0} if family in CAUSAL else {}), **options}
    kind = AutoModelForCausalLM if family in CAUSAL else AutoModel
    return spread_out(kind.from_config(config, attn_implementation=attention).eval())


def spread_out(model: Any) -> Any:
    """Weights of an untrained model are so small that attention hardly matters: enlarge them, so that tests can fail."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                parameter.mul_(4)
    return model


def inputs(family: str, batch: int = 3, length: int = 21) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)
    if family in IMAGE_MODELS:
        return {"pixel_values": torch.randn(batch, 3, 32, 32, generator=generator)}
    return {"input_ids": torch.randint(3, VOCABULARY, (batch, length), generator=generator)}


def output(model: Any, **given: Any) -> Tensor:
    """Logits or hidden states, (B, N, width)."""
    if model.config.model_type == "gpt2" or hasattr(model, "lm_head"):
        given.setdefault("use_cache", False)
    result = model(**given)
    return result.logits if "logits" in result else result.last_hidden_state
