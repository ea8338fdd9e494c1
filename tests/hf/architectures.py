"""Tiny random configurations of many architectures: how each is made, what it is given, and what it answers."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import transformers as hf
from torch import Tensor

VOCABULARY = 40
IMAGE_TOKEN = 39
HEADS = 4
TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
SIZE: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": HEADS,
    "intermediate_size": 48,
}
TEXT: dict[str, Any] = {**SIZE, "vocab_size": VOCABULARY, **TOKENS}
GROUPED: dict[str, Any] = {**TEXT, "num_key_value_heads": 2, "max_position_embeddings": 64}
GPT: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "n_embd": 32,
    "n_layer": 2,
    "n_head": HEADS,
    "n_positions": 64,
    **TOKENS,
}
VISION: dict[str, Any] = {**SIZE, "image_size": 16, "patch_size": 4}
ENCODER_DECODER: dict[str, Any] = {
    "vocab_size": VOCABULARY, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": HEADS,
    "decoder_attention_heads": HEADS, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "max_position_embeddings": 64,
    "decoder_start_token_id": 1, "forced_eos_token_id": None, **TOKENS,
}  # fmt: skip

Given = dict[str, Tensor]


@dataclass(frozen=True)
class Architecture:
    """kind: what it is given (`text`, `image`, ...). head: the class that makes the model, by config."""

    config: Callable[[], Any]
    kind: str = "text"
    head: Any = hf.AutoModel
    causal: bool = False
    generates: bool = False
    padded: bool = True  # whether a padding mask is a thing it takes


def encoder(config: Any, **more: Any) -> Architecture:
    return Architecture(lambda: config(**{**TEXT, **more}))


def image(config: Any, **more: Any) -> Architecture:
    return Architecture(lambda: config(**{**VISION, **more}), kind="image", padded=False)


def decoder(config: Any, sizes: dict[str, Any] = GROUPED, **more: Any) -> Architecture:
    return Architecture(lambda: config(**{**sizes, **more}), head=hf.AutoModelForCausalLM, causal=True, generates=True)


def _two_towers(config: Any, padded: bool) -> Architecture:
    text = {**TEXT, "max_position_embeddings": 64}
    return Architecture(
        lambda: config(text_config=text, vision_config=VISION), kind="text and image", causal=True, padded=padded
    )


def _seq2seq(config: Any) -> Architecture:
    return Architecture(
        lambda: config(**ENCODER_DECODER), kind="two texts", head=hf.AutoModelForSeq2SeqLM, causal=True, generates=True
    )


RIGHT: dict[str, Architecture] = {
    "bert": encoder(hf.BertConfig),
    "roberta": encoder(hf.RobertaConfig),
    "xlm_roberta": encoder(hf.XLMRobertaConfig),
    "camembert": encoder(hf.CamembertConfig),
    "distilbert": Architecture(
        lambda: hf.DistilBertConfig(vocab_size=VOCABULARY, dim=32, n_layers=2, n_heads=HEADS, hidden_dim=48)
    ),
    "albert": encoder(hf.AlbertConfig, embedding_size=16),
    "electra": encoder(hf.ElectraConfig, embedding_size=16),
    "modernbert": encoder(
        hf.ModernBertConfig, global_attn_every_n_layers=2, local_attention=8, cls_token_id=1, sep_token_id=2
    ),
    "nomic_bert": encoder(hf.NomicBertConfig),
    "esm": encoder(hf.EsmConfig, mask_token_id=3, position_embedding_type="rotary"),
    "vit": image(hf.ViTConfig),
    "deit": image(hf.DeiTConfig),
    "dinov2": image(hf.Dinov2Config),
    "dinov3": image(hf.DINOv3ViTConfig),
    "beit": image(hf.BeitConfig),
    "siglip": _two_towers(hf.SiglipConfig, padded=False),  # its answer is that of the last token, padding or not
    "siglip_vision": image(hf.SiglipVisionConfig),
    "clip": _two_towers(hf.CLIPConfig, padded=True),
    "wav2vec2": Architecture(
        lambda: hf.Wav2Vec2Config(
            **TEXT, conv_dim=(16, 16), conv_stride=(4, 2), conv_kernel=(8, 4), num_conv_pos_embeddings=4,
            num_conv_pos_embedding_groups=2, num_feat_extract_layers=2, feat_extract_norm="layer",
        ),
        kind="sound", padded=False,
    ),
    "patchtst": Architecture(
        lambda: hf.PatchTSTConfig(
            num_input_channels=2, context_length=32, patch_length=4, patch_stride=4, num_hidden_layers=2, d_model=32,
            num_attention_heads=HEADS, ffn_dim=48,
        ),
        kind="series", padded=False,
    ),
    "whisper": Architecture(
        lambda: hf.WhisperConfig(
            **{**ENCODER_DECODER, "max_source_positions": 16, "max_target_positions": 64, "num_mel_bins": 8},
            suppress_tokens=None, begin_suppress_tokens=None,
        ),
        kind="spectrum", head=hf.WhisperForConditionalGeneration, causal=True, generates=True,
    ),
    "bart": _seq2seq(hf.BartConfig),
    "marian": _seq2seq(hf.MarianConfig),
    "gpt2": decoder(hf.GPT2Config, GPT),
    "gpt_neox": decoder(hf.GPTNeoXConfig),
    "llama": decoder(hf.LlamaConfig),
    "qwen2": decoder(hf.Qwen2Config),
    "qwen3": decoder(hf.Qwen3Config, head_dim=8),
    "mistral": decoder(hf.MistralConfig, sliding_window=None),
    "mixtral": decoder(hf.MixtralConfig, sliding_window=None, num_local_experts=2, num_experts_per_tok=1),
    "phi": decoder(hf.PhiConfig),
    "phi3": decoder(hf.Phi3Config),
    "opt": decoder(hf.OPTConfig, ffn_dim=48, word_embed_proj_dim=32),
    "stablelm": decoder(hf.StableLmConfig),
    "olmo2": decoder(hf.Olmo2Config),
    "cohere": decoder(hf.CohereConfig),
    "smollm3": decoder(hf.SmolLM3Config),
    "granite": decoder(hf.GraniteConfig),
    "starcoder2": decoder(hf.Starcoder2Config, sliding_window=None),
    "glm4": decoder(hf.Glm4Config, head_dim=8),
    "smolvlm": Architecture(
        lambda: hf.SmolVLMConfig(
            text_config={"model_type": "llama", **GROUPED}, vision_config=VISION, image_token_id=IMAGE_TOKEN,
            scale_factor=2, pad_token_id=0,
        ),
        kind="text with image", head=hf.AutoModelForImageTextToText, causal=True, generates=True,
    ),
    "llava": Architecture(
        lambda: hf.LlavaConfig(
            text_config=hf.LlamaConfig(**GROUPED), vision_config=hf.CLIPVisionConfig(**VISION),
            image_token_index=IMAGE_TOKEN, image_seq_length=16,
        ),
        kind="text with image", head=hf.AutoModelForImageTextToText, causal=True, generates=True,
    ),
    "gemma2_without_cap": decoder(hf.Gemma2Config, head_dim=8, sliding_window=8, attn_logit_softcapping=None),
    "gemma3": decoder(
        hf.Gemma3TextConfig, head_dim=8, sliding_window=8, layer_types=["sliding_attention", "full_attention"]
    ),
    "mistral_with_window": decoder(hf.MistralConfig, sliding_window=8),
    "lfm2": decoder(hf.Lfm2Config, layer_types=["conv", "full_attention"]),
    "jamba": decoder(
        hf.JambaConfig, attn_layer_period=2, attn_layer_offset=1, expert_layer_period=2, expert_layer_offset=1,
        num_experts=2, mamba_d_state=4, mamba_d_conv=2, mamba_dt_rank=4,
    ),
    "qwen3_next": decoder(
        hf.Qwen3NextConfig, head_dim=8, layer_types=["linear_attention", "full_attention"], linear_num_value_heads=2,
        linear_num_key_heads=2, linear_key_head_dim=8, linear_value_head_dim=8, num_experts=2, num_experts_per_tok=1,
        moe_intermediate_size=16, shared_expert_intermediate_size=16,
    ),
}  # fmt: skip
FURTHER: dict[str, Architecture] = {  # beyond the 62
    "falcon_h1": decoder(
        hf.FalconH1Config, mamba_d_ssm=32, mamba_n_heads=4, mamba_d_head=8, mamba_d_state=8, mamba_n_groups=1,
        mamba_chunk_size=8,
    ),
    "zamba2": decoder(
        hf.Zamba2Config, num_hidden_layers=3, layers_block_type=["mamba", "mamba", "hybrid"], n_mamba_heads=8,
        mamba_headdim=8, mamba_d_state=8, mamba_ngroups=1, chunk_size=8, num_mem_blocks=1,
    ),
}  # fmt: skip

AT_CHOICE = "would change nothing"  # refused when the attention is chosen
REFUSED: dict[str, tuple[Architecture, str]] = {  # and the words, when the attention is chosen or at the first call
    "deberta": (encoder(hf.DebertaConfig), AT_CHOICE),
    "deberta_v2": (encoder(hf.DebertaV2Config), AT_CHOICE),
    "mpnet": (encoder(hf.MPNetConfig), AT_CHOICE),
    "roformer": (encoder(hf.RoFormerConfig, embedding_size=32), AT_CHOICE),
    "longformer": (encoder(hf.LongformerConfig, attention_window=4), AT_CHOICE),
    "gpt_neo": (
        decoder(hf.GPTNeoConfig, {}, vocab_size=VOCABULARY, hidden_size=32, num_layers=2, num_heads=HEADS,
                attention_types=[[["global", "local"], 1]], **TOKENS),
        AT_CHOICE,
    ),
    "falcon": (decoder(hf.FalconConfig), AT_CHOICE),
    "bloom": (decoder(hf.BloomConfig, {}, vocab_size=VOCABULARY, hidden_size=32, n_layer=2, n_head=HEADS, **TOKENS), AT_CHOICE),
    "mpt": (
        decoder(hf.MptConfig, {}, vocab_size=VOCABULARY, d_model=32, n_layers=2, n_heads=HEADS, max_seq_len=64, **TOKENS),
        AT_CHOICE,
    ),
    "mamba": (decoder(hf.MambaConfig, TEXT, state_size=4), AT_CHOICE),
    "t5": (
        Architecture(
            lambda: hf.T5Config(vocab_size=VOCABULARY, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=HEADS,
                                decoder_start_token_id=1, **TOKENS),
            kind="two texts", head=hf.AutoModelForSeq2SeqLM, causal=True, generates=True,
        ),
        "gives its attention position_bias|reads a copy of T5ForConditionalGeneration's config",
    ),
    "gemma2": (decoder(hf.Gemma2Config, head_dim=8, sliding_window=8), "gives its attention softcap"),
    "gpt_oss": (
        decoder(hf.GptOssConfig, head_dim=8, num_local_experts=2, num_experts_per_tok=1, sliding_window=8),
        "gives its attention s_aux",
    ),
    "swin": (
        Architecture(
            lambda: hf.SwinConfig(image_size=16, patch_size=2, embed_dim=16, depths=[2], num_heads=[2], window_size=4),
            kind="image", padded=False,
        ),
        "If the model makes it",
    ),
}  # fmt: skip
FURTHER_REFUSED: dict[str, tuple[Architecture, str]] = {
    "beit_with_positions": (image(hf.BeitConfig, use_relative_position_bias=True), "If the model makes it"),
    "git": (
        Architecture(
            lambda: hf.GitConfig(**TEXT, vision_config=VISION), kind="text and image", head=hf.AutoModelForCausalLM,
            causal=True,
        ),
        AT_CHOICE,
    ),
    "paligemma": (
        Architecture(
            lambda: hf.PaliGemmaConfig(
                text_config={"model_type": "gemma", **GROUPED, "head_dim": 8}, vision_config={
                    "model_type": "siglip_vision_model", **VISION, "projection_dim": 32},
                image_token_index=IMAGE_TOKEN, projection_dim=32,
            ),
            kind="text with image", head=hf.AutoModelForImageTextToText, causal=True, generates=True,
        ),
        "GemmaAttention says that it is bidirectional, but its mask is causal",
    ),
}  # fmt: skip
assert len(RIGHT) + len(REFUSED) == 62


def make(what: Architecture, attention: str | None = None) -> Any:
    """A random model in eval mode; models with a causal part get fixed alpha and beta."""
    torch.manual_seed(0)
    config = what.config()
    if attention is not None:
        config.lln = {"block_size": 4, **({"alpha": 2.0, "beta": 2.0} if what.causal else {})}
    chosen = {} if attention is None else {"attn_implementation": attention}
    build = what.head.from_config if hasattr(what.head, "from_config") else what.head._from_config
    return spread_out(build(config, **chosen).eval())


def spread_out(model: Any) -> Any:
    """Weights of an untrained model are so small that attention hardly matters: enlarge them, so that tests can fail."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2 and parameter.requires_grad:  # positions of sines are not saved
                parameter.mul_(4)
    return model


def given(what: Architecture, batch: int = 3, length: int = 13) -> Given:
    random = torch.Generator().manual_seed(1)
    ids = torch.randint(3, IMAGE_TOKEN, (batch, length), generator=random)
    pixels = torch.randn(batch, 3, 16, 16, generator=random)
    if what.kind == "image":
        return {"pixel_values": pixels}
    if what.kind == "sound":
        return {"input_values": torch.randn(batch, 160, generator=random)}
    if what.kind == "series":
        return {"past_values": torch.randn(batch, 32, 2, generator=random)}
    if what.kind == "spectrum":
        return {"input_features": torch.randn(batch, 8, 32, generator=random), "decoder_input_ids": ids}
    if what.kind == "two texts":
        return {"input_ids": ids, "decoder_input_ids": ids.flip(1)}
    if what.kind == "text and image":
        return {"input_ids": ids, "pixel_values": pixels}
    if what.kind == "text with image":
        return {"input_ids": _around_image(what, ids), "pixel_values": _images(what, pixels)}
    return {"input_ids": ids}


def _around_image(what: Architecture, ids: Tensor) -> Tensor:
    """Four, or sixteen, image tokens after the first: SmolVLM shuffles 2 x 2 patches into one."""
    count = 4 if what.config().model_type == "smolvlm" else 16
    return torch.cat([ids[:, :1], torch.full((len(ids), count), IMAGE_TOKEN), ids[:, 1:]], dim=1)


def _images(what: Architecture, pixels: Tensor) -> Tensor:
    return pixels[:, None] if what.config().model_type == "smolvlm" else pixels


def answer(model: Any, inputs: Given) -> Tensor:
    """What the model says of each sample: logits, hidden states, or scores, batch first."""
    more = {"use_cache": False} if model.can_generate() else {}
    found = model(**inputs, **more)
    for name in ("logits", "image_embeds", "last_hidden_state"):
        if found.get(name) is not None:
            beside = found.get("text_embeds")
            return found[name] if name != "image_embeds" else torch.cat([found[name], beside], dim=-1)
    raise AssertionError(f"no answer in {list(found)}")
