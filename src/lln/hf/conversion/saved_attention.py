"""config.json names the attention a model was trained with, by a name that stops transformers where lln.hf is not imported.

transformers never writes `attn_implementation`, so a model that was trained with LLN would come back as softmax. It does
read the key, though, and refuses to build a model for a name it does not know. So what is written is

    "attn_implementation": "lln_diag (import lln.hf)"

and, in a model of several configs, a dictionary of such names where they differ. With lln.hf imported the name is known; a
caller's own attn_implementation comes first, as ever. A model that is back at softmax when it is saved is saved as that.
"""

import warnings
from collections.abc import Collection
from typing import Any

from lln.hf.options import ATTENTIONS, VERSION

KEY = "attn_implementation"
MARK = " (import lln.hf)"


def known_name(saved: Any) -> Any:
    """The attention's own name from what a config says; dictionaries as transformers nests them."""
    if isinstance(saved, dict):
        return {part: known_name(name) for part, name in saved.items()}
    return saved.removesuffix(MARK) if isinstance(saved, str) else saved


def name_attention(config: Any, written: dict[str, Any], names: Collection[str]) -> dict[str, Any]:
    """`written`, which transformers made of the config, with that key and with options that agree with it."""
    written.pop(KEY, None)
    attention = _to_write(config, names)
    if attention is not None:
        written[KEY] = attention
    options = written.get("lln")
    if not isinstance(options, (dict, type(None))):
        return written
    own = config._attn_implementation
    if own in ATTENTIONS:
        written["lln"] = {"version": VERSION, **(options or {})}
    elif own is not None and options and own not in names:  # softmax again, and to be loaded as such
        written["lln"] = {name: x for name, x in options.items() if name != "attention"}
    return written


def _to_write(config: Any, names: Collection[str]) -> str | dict[str, Any] | None:
    """A name for all where all have it, else a dictionary of those that are ours: the others are left to transformers."""
    own = config._attn_implementation
    marked = f"{own}{MARK}" if own in names else None
    parts = {part: sub for part in config.sub_configs if (sub := getattr(config, part, None)) is not None}
    of_parts = {part: _to_write(sub, names) for part, sub in parts.items()}
    if all(x == marked for x in of_parts.values()):
        return marked
    return {part: x for part, x in {"": marked, **of_parts}.items() if x is not None}


def tell_if_overruled(saved: dict[str, Any], asked: Any, names: Collection[str]) -> None:
    options = saved.get("lln")
    written = known_name(saved.get(KEY)) or (options.get("attention") if isinstance(options, dict) else None)
    if written is None or asked == written or asked in names:
        return
    warnings.warn(
        f"this model was saved with attn_implementation={written!r}, and {asked!r} was asked for: its weights were made for "
        "the former. Leave attn_implementation out to get it",
        stacklevel=2,
    )
