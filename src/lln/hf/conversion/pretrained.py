"""A pretrained model with its tokenizer, from a folder, a name or a GGUF file: a causal model with its head, or an encoder."""

import importlib.util
from pathlib import Path
from typing import Any

from lln.hf.modules import attention_modules


def load(name: str) -> tuple[Any, Any]:
    """The tokenizer and the model, in eval mode; files that are damaged raise ValueError, whatever their reader raised."""
    if _is_a_path(name) and not Path(name).exists():
        raise FileNotFoundError(
            f"there is no model at {name}: give a folder with a model and its tokenizer, a .gguf file, or a name on the hub"
        )
    try:
        return _load(name)
    except (ValueError, OSError, ImportError):
        raise
    except Exception as reason:  # SafetensorError, UnpicklingError, RuntimeError of sizes, tokenizers' bare Exception
        raise ValueError(f"{name} cannot be read as a pretrained model: {reason}") from reason


def _load(name: str) -> tuple[Any, Any]:
    from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoTokenizer

    if name.endswith(".gguf"):
        return _from_gguf(Path(name))
    architectures = AutoConfig.from_pretrained(name).architectures or [""]
    kind = AutoModelForCausalLM if architectures[0].endswith(("CausalLM", "LMHeadModel")) else AutoModel
    return AutoTokenizer.from_pretrained(name), kind.from_pretrained(name).eval()


def _is_a_path(name: str) -> bool:
    """Whether it can be nothing else: a name on the hub is "name" or "owner/name"."""
    return name.startswith(("/", ".", "~")) or name.count("/") > 1 or name.endswith(".gguf") or "\\" in name


def is_causal(model: Any) -> bool:
    return any(getattr(module, "is_causal", False) for module in attention_modules(model))


def _from_gguf(file: Path) -> tuple[Any, Any]:
    """Unpacked to float32 and rebuilt: a model that remembers its quantization can be neither trained nor saved."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    if importlib.util.find_spec("gguf") is None:
        raise ImportError("reading a GGUF file needs gguf: pip install gguf")
    given = {"pretrained_model_name_or_path": str(file.parent), "gguf_file": file.name}
    packed = AutoModelForCausalLM.from_pretrained(**given, dtype=torch.float32)
    config = type(packed.config)(**{k: v for k, v in packed.config.to_dict().items() if k != "quantization_config"})
    config.architectures = [type(packed).__name__]
    model = type(packed)(config).eval()
    model.load_state_dict(packed.state_dict())
    return AutoTokenizer.from_pretrained(**given), model
