"""Hugging Face models with LLN attention: attn_implementation="lln_diag", generate() with constant memory, conversion.

>>> import lln.hf
>>> "lln_diag" in lln.hf.register()
True
"""

try:
    import transformers as _transformers  # noqa: F401
except ImportError as missing:
    raise ImportError("lln.hf needs transformers: pip install 'lln-attention[hf]'") from missing

from lln.conversion.parameters import LayerShape, LLNParameters
from lln.hf.attention.cache import LLNCache
from lln.hf.conversion.convert import convert, unload
from lln.hf.conversion.ready_made import save_conversion
from lln.hf.distillation.distil import distil
from lln.hf.options import LLNOptions
from lln.hf.registration import register

register()

__all__ = [
    "LLNCache",
    "LLNOptions",
    "LLNParameters",
    "LayerShape",
    "convert",
    "distil",
    "register",
    "save_conversion",
    "unload",
]
