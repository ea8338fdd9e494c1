"""Linear Log-Normal attention for PyTorch (arXiv 2311.13541): linear in the length, with softmax's concentration."""

from lln._version import __version__
from lln.attention import block_diagonal_attention, lln_attention, lln_diag_attention
from lln.conversion import Converted, convert, unload
from lln.layers import LLNAttention, LLNDiagAttention, LLNEncoderLayer
from lln.matching import MomentMatcher, match_moments
from lln.near_far import NearFarState, near_far_attention
from lln.near_far.layer import NearFarAttention
from lln.state import LLNState

__all__ = [
    "Converted",
    "LLNAttention",
    "LLNDiagAttention",
    "LLNEncoderLayer",
    "LLNState",
    "MomentMatcher",
    "NearFarAttention",
    "NearFarState",
    "__version__",
    "block_diagonal_attention",
    "convert",
    "lln_attention",
    "lln_diag_attention",
    "match_moments",
    "near_far_attention",
    "unload",
]
