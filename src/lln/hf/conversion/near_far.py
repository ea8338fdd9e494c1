"""Converting to near-far attention: the four weights of each head in closed form (`lln.conversion.closed_form`)."""

from typing import Any

from torch import nn

from lln.conversion import closed_form
from lln.hf.conversion.watching import shown
from lln.hf.modules import attention_modules
from lln.hf.options import LLNOptions
from lln.near_far.fit import NearFarFit


def fit_weights(model: Any, batches: list, options: LLNOptions) -> None:
    """Sets `weights` and `fit_error` of every attention module that has parameters; cross-attention has no near keys.

    Which of the four a head uses is chosen by leaving out each text in turn.
    """
    closed_form.set_weights(_own(model), normal_equations(model, batches, options), NearFarFit.best)


def normal_equations(model: Any, batches: list, options: LLNOptions) -> dict[nn.Module, NearFarFit]:
    """Of each attention module that has parameters, with its alpha, beta and feature bias as they are."""
    near = {name: getattr(options, name) for name in ("block_size", "neighbours", "first_tokens")}
    return closed_form.normal_equations(shown(model, batches), _own(model), near)


def _own(model: Any) -> dict[nn.Module, Any]:
    return {m: own for m in attention_modules(model) if (own := getattr(m, "lln", None)) is not None}
