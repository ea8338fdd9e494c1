"""Members of the zoo in place of softmax, through the same door as LLN.

A member without weights is a function of q, k and v: the model is told to call it, and nothing is measured or stored. A member
with weights is refused here, because config.lln cannot describe them and plain from_pretrained would lose them; `lln.convert`
puts them into the model's modules and into a file of their own.
"""

from collections.abc import Mapping
from typing import Any

from torch import nn

from lln import zoo
from lln.conversion.zoo_site import check_member, unfit
from lln.hf.attention.zoo import function_names
from lln.hf.modules import named_attention_modules
from lln.hf.options import ATTENTIONS
from lln.zoo.card import refuse_unsupported


def check(model: nn.Module, name: str, given: Mapping[str, Any]) -> None:
    """Refuse what no member is called, what is not a function of q, k and v, and what the model's attention asks beyond it.

    given: other arguments of `convert`, of which a function has no use.
    """
    if name not in zoo.names():
        fitting = (member for member in function_names() if unfit(member) is None)
        known = ", ".join(map(repr, (*ATTENTIONS, *fitting)))
        raise ValueError(f"attention must be one of {known}, got {name!r}")
    check_member(name)
    if zoo.card(name).learned:
        raise ValueError(
            f"{name} has weights of its own, which save_pretrained would lose: convert with lln.convert(model, batches, "
            f"attention={name!r}), train with lln.conversion.distil, and save with lln.conversion.save"
        )
    if given:
        raise ValueError(
            f"{name} is a function of q, k and v, with nothing to measure or to choose: leave out {', '.join(given)}"
        )
    for place, module in named_attention_modules(model).items():
        try:
            refuse_unsupported(zoo.card(name), bool(getattr(module, "is_causal", False)), cross=False)
        except ValueError as reason:
            raise ValueError(f"{place}: {reason}") from None
