"""Near-far attention: its function and state; `layer` has the module, `fit` the weights in closed form."""

from lln.near_far.attention import NEUTRAL, near_far_attention
from lln.near_far.state import NearFarState

__all__ = ["NEUTRAL", "NearFarState", "near_far_attention"]
