"""Each operation in torch's own operators alone: any length, no loop over it but a scan, no value read back, no gradient."""

from collections.abc import Callable
from typing import Any

from lln.onnx.forms.attention import attention, diag
from lln.onnx.forms.blocks import blocks
from lln.onnx.forms.matching import match, moments
from lln.onnx.forms.near_far import near_far
from lln.onnx.forms.steps import diag_step, near_far_step, open_block

FORMS: dict[str, Callable[[Any], Any]] = {
    "attention": attention, "blocks": blocks, "diag": diag, "near_far": near_far, "match": match, "moments": moments,
    "open_block": open_block, "diag_step": diag_step, "near_far_step": near_far_step,
}  # fmt: skip

__all__ = ["FORMS"]
