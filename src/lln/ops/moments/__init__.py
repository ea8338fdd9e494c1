"""Sums over q and k, and the scales matched to them, as operations with their backends in the order they are tried."""

from lln.ops.moments import native, triton, plain_sums  # noqa: I001  (registration is the order of preference)
from lln.ops.moments import plain
from lln.ops.moments.op import Entropies, EntropyOperands, Matched, MatchOperands, Moments, Operands
from lln.ops.moments.op import entropies, match, moments

__all__ = [
    "Entropies",
    "EntropyOperands",
    "MatchOperands",
    "Matched",
    "Moments",
    "Operands",
    "entropies",
    "match",
    "moments",
    "native",
    "plain",
    "plain_sums",
    "triton",
]
