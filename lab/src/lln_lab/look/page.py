"""From a model and a text to a result that `lln report` shows: maps, and entropy and spectral gap of every matrix."""

from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from lln.results import write_result
from lln_lab.experiments.maps import attention_maps
from lln_lab.look.model import layers_of
from lln_lab.report import write

NAMES = {"softmax": "softmax", "lln": "LLN", "lln_diag": "LLN+Diag"}


def look(
    name: str,
    text: str,
    out: Path,
    *,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    block_size: int = 64,
    max_length: int = 16_384,
    on_map: Callable[[str], None] = lambda what: None,
) -> tuple[Path, dict[str, Any]]:
    """Write look.json and look.html to `out`; the page and the result are returned."""
    from lln.hf.conversion.pretrained import load

    tokenizer, model = load(name)
    known_as = called(name)
    limit = min(max_length, positions(model, tokenizer))
    whole = tokenizer(text, verbose=False)["input_ids"]
    inputs = tokenizer(text, return_tensors="pt", truncation=True, max_length=limit)
    ids = inputs["input_ids"][0].tolist()
    if len(ids) < 2:
        raise ValueError(f"the text has {len(ids)} token(s): attention maps need two or more")
    found = layers_of(model, {"input_ids": inputs["input_ids"]}, layers)
    count = found[0].q.shape[1]
    wrong = [head for head in heads or () if not 0 <= head < count]
    if wrong:
        raise ValueError(f"there is no head {wrong[0]}: every layer has heads 0 to {count - 1}")
    tokens = tokenizer.convert_ids_to_tokens(ids)
    maps = attention_maps(found, tokens, heads=heads, block_size=block_size, on_map=on_map)
    result = {
        "experiment": "look",
        "title": f"{known_as} reads {len(ids):,} tokens",
        "settings": {"model": known_as, "tokens": len(ids), "block_size": block_size},
        "headline": headline(known_as, maps),
        "tables": [table(maps)],
        "maps": maps,
        "limits": limits(len(whole), len(ids), found[0].softmax.is_causal),
    }
    written = write_result(out / "look.json", result, strict=False)
    return write([written], out / "look.html", f"Attention of {known_as}"), result


def called(name: str) -> str:
    """A model by its name: of a folder the last part that says something."""
    parts = [part for part in Path(name).parts if part not in ("model", "models", "/", ".")]
    return parts[-1] if parts else name


def positions(model: Any, tokenizer: Any) -> int:
    """How many tokens the model can read; models with rotary positions say so, too."""
    found = getattr(model.config, "max_position_embeddings", None) or 1 << 30
    stated = getattr(tokenizer, "model_max_length", None) or found
    return int(min(found, stated))


def headline(name: str, maps: Sequence[dict[str, Any]]) -> dict[str, Any]:
    length = maps[0]["length"]
    means = {kind: fmean(one["entropy"] for one in maps if one["label"] == kind) for kind in NAMES}
    sentences = [
        f"What {name} attends to in {length:,} tokens, by softmax, and what LLN and LLN+Diag would attend to with the same "
        "queries and keys. Choose a layer and a head, and point at a cell to read it."
    ]
    figures = [
        {
            "value": f"{bits:.2f} bits",
            "label": f"entropy of {NAMES[kind]}",
            "note": f"mean over what is shown: as if {2**bits:,.0f} of {length:,} tokens had equal weight",
            "attention": kind,
        }
        for kind, bits in means.items()
    ]
    return {"sentences": sentences, "figures": figures}


def table(maps: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Means over the heads of each layer."""
    rows = []
    for layer in dict.fromkeys(one["layer"] for one in maps):
        row: list[Any] = [layer]
        for measure in ("entropy", "gap"):
            for kind in NAMES:
                values = [one[measure] for one in maps if (one["layer"], one["label"]) == (layer, kind)]
                row.append(None if None in values else round(fmean(values), 3))
        rows.append(row)
    columns = [f"{measure}, {name}" for measure in ("entropy", "gap") for name in NAMES.values()]
    return {
        "title": "Concentration of every layer, mean over heads",
        "note": "Entropy of a row in bits; spectral gap 1 − |λ₂|. LLN is matched to softmax's entropy on this text.",
        "columns": ["layer", *columns],
        "rows": rows,
    }


def limits(whole: int, read: int, causal: bool) -> list[str]:
    told = [
        "LLN and LLN+Diag are computed from the softmax model's own queries and keys: they show what LLN would look at here, "
        "not what a model trained with it looks at."
    ]
    if read < whole:
        told.append(f"The text has {whole:,} tokens, of which the first {read:,} are shown: the model reads no more.")
    if causal:
        told.append(
            "In a causal model LLN's α and β would come from statistics of earlier texts; here they are this text's."
        )
    return told
