"""Ways to convert a model without training, side by side: what helps, and what does not."""

from collections.abc import Callable
from typing import Any

from lln.hf.conversion.convert import convert, unload

VARIANTS: dict[str, dict[str, Any]] = {
    "matched per sample": {"calibrated": False, "subtract_mean_key": False},
    "matched per sample, mean key subtracted": {"calibrated": False},
    "the same, matching the variance": {"calibrated": False, "target": "variance"},
    "measured on data, mean key subtracted": {"fit": False},
    "measured, concentration and mixing fitted": {},
    "the same, one weight for all rows": {"far_weight": False},
    "the same, blocks of 128": {"block_size": 128},
    "the same, LLN alone": {"attention": "lln"},
}


def compare(
    model: Any, batches: list[Any], measure: Callable[[Any], dict[str, Any]], on_progress: Callable[[str], None]
) -> dict[str, dict[str, Any]]:
    """Convert, measure, undo; for each variant."""
    results = {}
    for name, options in VARIANTS.items():
        on_progress(name)
        given = {k: v for k, v in options.items() if k != "calibrated"}
        convert(model, calibrate=batches if options.get("calibrated", True) else None, **given)
        results[name] = {"options": given, **measure(model)}
        unload(model)
    return results
