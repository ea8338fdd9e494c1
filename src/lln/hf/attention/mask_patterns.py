"""Which keys a query may see, read from the function that transformers builds a mask of. What is not known is not taken.

    causal      j <= i                      window w    i - w < j  (causal),  |i - j| < w  (both ways)
    packed      i and j belong to the same sequence

transformers composes a mask of closures, which cannot be looked into inside a compiled graph. From the moment lln.hf is
imported, those that are known here carry a description (`lln.hf.patches` writes it on them); a mask with any other part (a
prefix, image tokens that see each other both ways, chunks, whatever comes next) has none.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor
from transformers.masking_utils import bidirectional_mask_function, causal_mask_function

MaskFunction = Callable[..., Any]


class Pattern(NamedTuple):
    causal: bool
    window: int | None = None  # keys nearer than this are seen
    sequences: Tensor | None = None  # (B, N), the same number for tokens of the same packed sequence


class _Overlay(NamedTuple):
    """One restriction of a mask."""

    before: int | None = None  # i - j < before
    around: int | None = None  # |i - j| < around
    sequences: Tensor | None = None


# Of what the functions of transformers.masking_utils with these names return, from what they are given.
DESCRIPTIONS: dict[str, Callable[..., Any]] = {
    "and_masks": lambda *mask_functions: mask_functions,
    "sliding_window_overlay": lambda sliding_window: _Overlay(before=sliding_window),
    "sliding_window_bidirectional_overlay": lambda sliding_window: _Overlay(around=sliding_window + 1),
    "packed_sequence_mask_function": lambda packed_sequence_mask: _Overlay(sequences=packed_sequence_mask),
}


def pattern_of(function: MaskFunction) -> Pattern | None:
    """The pattern that the mask function stands for, or None if any part of it is not known."""
    if function is causal_mask_function:
        return Pattern(causal=True)
    if function is bidirectional_mask_function:
        return Pattern(causal=False)
    parts = getattr(function, "lln_description", None)
    if not isinstance(parts, tuple) or isinstance(parts, _Overlay):
        return None
    base: Pattern | None = None
    overlays = []
    for part in parts:
        description = getattr(part, "lln_description", None)
        if isinstance(description, _Overlay):
            overlays.append(description)
            continue
        inner = pattern_of(part)
        if inner is None or base is not None:
            return None
        base = inner
    for overlay in overlays:
        base = None if base is None else _restricted(base, overlay)
    return base


def _restricted(base: Pattern, overlay: _Overlay) -> Pattern | None:
    if overlay.sequences is not None:
        return None if base.sequences is not None else base._replace(sequences=overlay.sequences)
    if overlay.around is None and not base.causal:
        return None  # a window on one side only
    window = overlay.before if overlay.around is None else overlay.around
    return None if base.window is not None else base._replace(window=window)
