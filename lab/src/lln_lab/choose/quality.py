"""What is known of quality: how far each attention was from softmax, task by task, in the repository's own results.

A row is one attention on one task: the mean over seeds of its difference to the softmax run with the same seed, its 95 %
interval (`lln_lab.experiments.pairs`), and how long the inputs were. Differences are in points of accuracy, or in nats of loss
with the sign turned: more is better.
`quality.json`, beside this file, is made by

    python -m lln_lab.choose.quality docs/results
"""

import json
import math
import sys
from dataclasses import asdict, dataclass
from importlib import resources
from pathlib import Path
from typing import Any

FILE = "quality.json"
EXPERIMENTS = ("fig8", "lra", "table1", "table3", "causal_lm")


@dataclass(frozen=True)
class Row:
    """One attention on one task."""

    member: str
    task: str
    length: int
    causal: bool
    steps: int
    seeds: int
    gain: float  # to softmax of the same seeds; more is better
    interval: list[float] | None  # of the gain; None for fewer than three seeds
    unit: str  # "points" or "nats"
    source: str  # file in docs/results

    @property
    def behind(self) -> bool:
        """Whether the interval says so."""
        return self.interval is not None and self.interval[1] < 0

    def __str__(self) -> str:
        interval = " [{:+.2g}, {:+.2g}]".format(*self.interval) if self.interval is not None else ""
        seeds = "1 seed" if self.seeds == 1 else f"{self.seeds} seeds"
        return f"{self.task} {self.gain:+.2g}{interval} {self.unit} ({self.length:,} tokens, {seeds})"


def gather(folder: Path) -> list[Row]:
    """Every attention with its default options that was trained beside softmax, from the results in `folder`.

    A result without softmax is compared with the softmax of another one that trained alike.
    """
    results = {}
    for path in sorted(folder.rglob("*.json")):
        data = json.loads(path.read_text())
        if data.get("experiment") in EXPERIMENTS:
            # a label that is more than the attention's name: options, or steps of its own
            runs = [run for run in data["runs"] if run["label"] == run["attention"] and run.get("evaluation")]
            results[path.relative_to(folder).as_posix()] = runs
    softmax = [run for runs in results.values() for run in runs if run["attention"] == "softmax"]
    rows = []
    for source, runs in results.items():
        for task in dict.fromkeys(run["task"] for run in runs):
            own = [run for run in runs if run["task"] == task]
            if all(run["attention"] != "softmax" for run in own):
                own += [run for run in softmax if _setting(run) in map(_setting, own)]
            rows += _of_task(own, source)
    return rows


def _setting(run: dict[str, Any]) -> tuple[Any, ...]:
    """What runs of two results must share to be compared."""
    budget = run["budget"]
    trained = run["steps"], budget["batch"], budget["learning_rate"]
    return run["task"], run["seed"], *trained, _length(run["model"]), run["data"]["rows"]


def known() -> list[Row]:
    """The rows that this package ships with."""
    text = (resources.files("lln_lab.choose") / FILE).read_text(encoding="utf-8")
    return [Row(**row) for row in json.loads(text)]


def nearest(rows: list[Row], member: str, length: int, causal: bool) -> list[Row]:
    """Tasks at the length nearest to what is asked, of the same direction where there are any; of each the longest training."""

    def distance(row: Row) -> tuple[bool, float]:
        return row.causal != causal, round(abs(math.log2(row.length / length)), 1)

    own = [row for row in rows if row.member == member]
    least = min(map(distance, own), default=None)
    best: dict[str, Row] = {}
    for row in sorted(own, key=lambda row: (row.steps, row.seeds)):
        if distance(row) == least:
            best[row.task] = row
    return list(best.values())


def _of_task(runs: list[dict[str, Any]], source: str) -> list[Row]:
    from lln_lab.experiments.evidence import FEWEST_SEEDS
    from lln_lab.experiments.pairs import gain  # here: who only reads the rows needs no SciPy

    softmax = {run["seed"]: run for run in runs if run["attention"] == "softmax"}
    rows = []
    for member in sorted({run["attention"] for run in runs} - {"softmax"}):
        own = [run for run in runs if run["attention"] == member and run["seed"] in softmax]
        gains = [_score(run)[0] - _score(softmax[run["seed"]])[0] for run in own]
        if not gains or not all(map(math.isfinite, gains)):
            continue
        found, first = gain(gains), own[0]
        rows.append(Row(
            member, first["task"], _length(first["model"]), first["model"].get("causal", False), first["steps"], len(gains),
            found.mean, [found.low, found.high] if len(gains) >= FEWEST_SEEDS else None, _score(first)[1], source,
        ))  # fmt: skip
    return rows


def _score(run: dict[str, Any]) -> tuple[float, str]:
    """More is better: a score in points, or the negative loss."""
    found = run["evaluation"]
    for name in ("accuracy", "matthews", "pearson"):
        if name in found:
            return 100 * found[name], "points"
    return -found["loss"], "nats"


def _length(model: dict[str, Any]) -> int:
    """Of a picture, the patches and the class token."""
    return int(model["length"]) if "length" in model else (model["picture"] // model["patch"]) ** 2 + 1


def main(folder: str) -> None:
    rows = [json.dumps(asdict(row)) for row in gather(Path(folder))]
    (Path(__file__).parent / FILE).write_text("[\n" + ",\n".join(rows) + "\n]\n")  # a line each
    print(f"{len(rows)} rows written to {FILE}")


if __name__ == "__main__":
    main(sys.argv[1])
