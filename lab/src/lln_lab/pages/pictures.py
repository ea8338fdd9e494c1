"""`python -m lln_lab.pages.pictures docs` draws every picture in docs/results again, from the JSON beside it.

Nothing is measured. A name after `docs` draws that picture only.
"""

import importlib
import json
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from lln_lab.experiments.figure import save

EXPERIMENTS = "lln_lab.experiments"
# What draws a result: the module whose `draw` it is. A result that is not here has no picture.
DRAWN_BY = {
    **{f"fig{number}": f"{EXPERIMENTS}.fig{number}" for number in (1, 2, 5, 6, 7, 8, 9)},
    **{
        "fig8b": f"{EXPERIMENTS}.fig8",
        "fig10b": f"{EXPERIMENTS}.fig10b",
        "fig10": f"{EXPERIMENTS}.table3",
        "table3": f"{EXPERIMENTS}.table3",
        "length": f"{EXPERIMENTS}.length",
        "query_length": f"{EXPERIMENTS}.query_length",
    },
    **{"gaussian": f"{EXPERIMENTS}.gaussian", "sensitivity": f"{EXPERIMENTS}.sensitivity"},
    **{"demo": f"{EXPERIMENTS}.demo", "kernels": "lln_lab.bench.kernels_plot"},
    "near_far_terms": "lln_lab.bench.near_far_terms_plot",
    **{name: "lln_lab.bench.zoo_plot" for name in ("table2", "zoo", "zoo_roberta", "zoo_roberta_2_layers")},
}


def drawer(name: str) -> Callable[[dict[str, Any]], Any]:
    if name not in DRAWN_BY:
        raise ValueError(f"there is no picture named {name}: choose from {', '.join(DRAWN_BY)}")
    return importlib.import_module(DRAWN_BY[name]).draw


def redraw(folder: Path, names: Iterable[str] = ()) -> list[Path]:
    """The pictures that were drawn: all that are in the folder, unless some are named."""
    wanted = list(names) or [name for name in DRAWN_BY if (folder / f"{name}.png").exists()]
    return [
        save(drawer(name), json.loads((folder / f"{name}.json").read_text()), folder / f"{name}.png") for name in wanted
    ]


if __name__ == "__main__":
    for path in redraw(Path(sys.argv[1]) / "results", sys.argv[2:]):
        print(path)
