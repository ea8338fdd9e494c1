"""Verdicts of a result that is already written, from its JSON alone.

    python -m lln_lab.experiments.judge docs/results/lra.json --data DATA

judges it by today's rules and writes it back; runs, tables and provenance stay as they are. Results from before guessing was
noted get it from the data, whose folder `--data` names.
"""

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from lln.writing import whole
from lln_lab import data
from lln_lab.data.task import spread
from lln_lab.experiments import (
    causal_lm,
    fig1,
    fig2,
    fig5,
    fig6,
    fig7,
    fig8,
    fig9,
    fig10b,
    gaussian,
    imdb,
    lra,
    sensitivity,
    table1,
    table1_encoder,
    table3,
)
from lln_lab.experiments.evidence import by_frequency, most_frequent
from lln_lab.experiments.masking import tokenizer_of, windows
from lln_lab.experiments.verdict import Verdict

Found = dict[str, Any]
FIGURES: dict[int, Any] = {1: fig1, 2: fig2, 5: fig5, 6: fig6, 7: fig7}
OF_RUNS: dict[str, Callable[[list[Found]], list[Verdict]]] = {
    "fig8": fig8.verdicts,
    "causal_lm": causal_lm.verdicts,
    "table1": table1.verdicts,
    "table1_encoder": table1_encoder.verdicts,
    "table3": table3.verdicts,
    "fig9": fig9.verdicts,
    "fig10": table3.ablation_verdicts,
    "fig10b": fig10b.verdicts,
    "lra": lra.verdicts,
    "imdb": imdb.verdicts,
    "length": lambda _: [],
    "gaussian": lambda runs: gaussian.verdicts([x["look"] for r in runs for x in r["history"] if "look" in x]),
    "sensitivity": lambda runs: [
        verdict for task in dict.fromkeys(r["task"] for r in runs) for verdict in sensitivity.verdicts(runs, task)
    ],
}


def verdicts(found: Found) -> list[Verdict] | None:
    """None: this is no result with verdicts."""
    if found.get("figure") in FIGURES:
        judged: list[Verdict] = FIGURES[found["figure"]].verdicts(found)
        return judged
    if found.get("experiment") in OF_RUNS:
        return OF_RUNS[found["experiment"]](found["runs"])
    return None


def note_guessing(found: Found, folder: str) -> None:
    """Into the data record of every run that lacks it, what guessing reaches on the rows that the run was validated on."""
    noted: dict[str, float] = {}
    for run in found["runs"]:
        if "guessing" not in run["data"]:
            task = run["task"]
            if task not in noted:
                noted[task] = _guessing(found, run, folder)
            run["data"]["guessing"] = noted[task]


def _guessing(found: Found, run: Found, folder: str) -> float:
    settings, record = found["settings"], run["data"]
    name = record["name"]
    lengths = settings.get("lengths") or {}
    options = {} if run["task"] in ("pathfinder", "image") or not lengths else {"length": lengths[run["task"]]}
    embedded = record["source"].startswith("embedded")
    rows = data.load(name, source=None if embedded else folder, **options)
    if rows.files != record["files"]:
        raise ValueError(
            f"{folder} holds another {name} than the result was made from: {rows.files}, not {record['files']}"
        )
    if run["task"] != "mlm":
        return most_frequent(spread(rows.validation, settings["validation_rows"]))
    size = settings.get("size") or settings["pretraining"]["size"]
    texts, held_out = ([split[i]["text"] for i in range(len(split))] for split in (rows.train, rows.validation))
    with TemporaryDirectory() as aside:
        bpe = tokenizer_of(texts, Path(aside) / "tokenizer", record["tokens"]["vocabulary"])
    validation = windows(held_out, bpe, size["length"])[: settings["validation_rows"]]
    return by_frequency(windows(texts, bpe, size["length"]), validation, bpe.get_vocab_size())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, nargs="+")
    parser.add_argument("--data", help="folder of the data, for results that do not say what guessing reaches")
    options = parser.parse_args()
    for path in options.results:
        found = json.loads(path.read_text())
        if options.data and "runs" in found:
            note_guessing(found, options.data)
        judged = verdicts(found)
        if judged is None:
            parser.error(f"{path} holds no result with verdicts")
        found["verdicts"] = [verdict.as_data() for verdict in judged]
        with whole(path) as aside:
            aside.write_text(json.dumps(found, indent=1) + "\n")
        for verdict in judged:
            print(f"{path.name}: {verdict.outcome}: {verdict.claim}: {verdict.numbers}")


if __name__ == "__main__":
    main()
