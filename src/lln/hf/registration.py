"""Making `lln`, `lln_diag` and the zoo known to transformers: attention and mask interface together, always."""

from transformers import AttentionInterface, AttentionMaskInterface

from lln.hf.attach import install_attachment
from lln.hf.attention import lln_diag_forward, lln_forward
from lln.hf.generation import install_cache_choice
from lln.hf.masks import padding_mask
from lln.hf.zoo import function_names, zoo_forward

_registered: list[str] = []


def register() -> list[str]:
    """Register every attention as attn_implementation=...; importing lln.hf does it. Returns the names.

    Without its own mask function an implementation would be called without any mask, padding included: the two go
    together here and nowhere apart.
    """
    if not _registered:
        zoo = function_names()
        functions = {"lln": lln_forward, "lln_diag": lln_diag_forward, **{name: zoo_forward(name) for name in zoo}}
        for name, function in functions.items():
            AttentionInterface.register(name, function)
            AttentionMaskInterface.register(name, padding_mask)
        install_cache_choice(zoo)
        install_attachment(functions)
        _registered.extend(functions)
    return list(_registered)
