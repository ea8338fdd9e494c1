"""Making `lln`, `lln_diag`, `lln_near_far` and the zoo known to transformers: attention and mask interface together, always."""

from transformers import AttentionInterface, AttentionMaskInterface

from lln.hf.attention.functions import lln_diag_forward, lln_forward, lln_near_far_forward
from lln.hf.attention.masks import padding_mask
from lln.hf.attention.zoo import function_names, zoo_forward
from lln.hf.patches import install

_registered: list[str] = []


def register() -> list[str]:
    """Register every attention as attn_implementation=...; importing lln.hf does it. Returns the names.

    Without its own mask function an implementation would be called without any mask, padding included: the two go
    together here and nowhere apart.
    """
    if not _registered:
        functions = {
            "lln": lln_forward,
            "lln_diag": lln_diag_forward,
            "lln_near_far": lln_near_far_forward,
            **{name: zoo_forward(name) for name in function_names()},
        }
        install(functions)
        for name, function in functions.items():
            AttentionInterface.register(name, function)
            AttentionMaskInterface.register(name, padding_mask)
        _registered.extend(functions)
    return list(_registered)
