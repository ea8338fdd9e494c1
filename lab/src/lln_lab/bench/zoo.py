"""Every member of the zoo side by side: a training step of an encoder, each cell in a process of its own, as ratios to
softmax.

Rounds are interleaved: all cells of a length, one after the other, then the next length, then everything again; a
member's ratio is the median over rounds of its time over softmax's in the same round. A finished cell is written down
at once, so an interrupted run goes on where it stopped. A cell that runs out of memory or time is reported as such,
and longer ones of that member are not tried.
"""

import json
import multiprocessing
import statistics
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from lln import zoo
from lln_lab.bench.zoo_cell import CLOCKS, Cell, run_limited
from lln_lab.bench.zoo_paper import paper_ratios

SHAPES: dict[str, dict[str, int]] = {
    "roberta": {"embed_dim": 768, "num_heads": 12, "feed_forward": 3072, "layers": 12},
    "small": {"embed_dim": 64, "num_heads": 2, "feed_forward": 128, "layers": 2},  # that of the Long Range Arena
}
MEASURES = ("step_seconds", "attention_forward_seconds", "attention_train_seconds", "peak_bytes")


@dataclass(frozen=True)
class Plan:
    """What to measure. `layers` replaces the shape's number of layers; layers are alike, so ratios hardly change."""

    lengths: dict[str, list[int]] = field(
        default_factory=lambda: {"roberta": [512, 1024, 2048, 4096], "small": [1024, 2048, 4096, 8192, 16384]}
    )
    members: list[str] = field(default_factory=zoo.names)
    layers: dict[str, int] = field(default_factory=dict)
    rounds: int = 3
    steps: int = 3
    threads: int = 1
    clock: str = "wall"  # or "cpu", for a machine with other work to do
    memory_limit: float = 12.0  # gigabytes
    time_limit: float = 300.0  # seconds for a cell

    def __post_init__(self) -> None:
        for name in self.members:
            zoo.card(name)
        if self.clock not in CLOCKS:
            raise ValueError(f"clock must be one of {', '.join(CLOCKS)}, got {self.clock!r}")
        for shape in (*self.lengths, *self.layers):
            if shape not in SHAPES:
                raise ValueError(f"no shape {shape!r}; there are {', '.join(SHAPES)}")

    def cells(self) -> Iterator[Cell]:
        members = ["softmax", *(name for name in self.members if name != "softmax")]
        for round_ in range(self.rounds):
            for shape, lengths in self.lengths.items():
                size: dict[str, Any] = {
                    **SHAPES[shape],
                    **({"layers": self.layers[shape]} if shape in self.layers else {}),
                }
                for length in lengths:
                    for name in members:
                        yield Cell(
                            member=name,
                            shape=shape,
                            length=length,
                            round=round_,
                            steps=self.steps,
                            threads=self.threads,
                            clock=self.clock,
                            memory_limit=self.memory_limit,
                            **size,
                        )


def run(plan: Plan, notes: Path, progress: Callable[[str], None] = lambda what: None) -> dict[str, Any]:
    """Measure what `notes` (one JSON line per finished cell) does not hold yet, and sum everything up."""
    done = read_notes(notes)
    failed: dict[tuple[str, str], tuple[int, str]] = {}  # (member, shape) -> the shortest length that failed
    results = []
    for cell in plan.cells():
        progress(f"{cell.member} {cell.shape} N={cell.length:,} round {cell.round + 1}")
        where = (cell.member, cell.shape)
        if cell.key in done:
            result = done[cell.key]
        elif where in failed and cell.length >= failed[where][0]:
            result = {"status": failed[where][1]}
        else:
            result = run_cell(cell, plan.time_limit)
            notes.parent.mkdir(parents=True, exist_ok=True)
            with notes.open("a") as file:
                file.write(json.dumps({"cell": asdict(cell), "result": result}) + "\n")
        if result["status"] != "ok" and cell.length <= failed.get(where, (cell.length, ""))[0]:
            failed[where] = (cell.length, result["status"])
        results.append((cell, result))
    return {"plan": asdict(plan), "shapes": SHAPES, "rows": summarise(results)}


def run_cell(cell: Cell, time_limit: float) -> dict[str, Any]:
    """The cell in a process of its own, within its limits; the process starts with torch imported."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["lln_lab.bench.zoo_cell"])
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=run_limited, args=(asdict(cell), sender))
    process.start()
    sender.close()
    try:
        if not receiver.poll(time_limit):
            return {"status": "timeout"}
        result: dict[str, Any] = receiver.recv()
    except EOFError:  # killed: by the system's guard of memory, or by an allocation that failed outside of Python
        return {"status": "OOM"}
    finally:
        process.kill()
        process.join()
    if result["status"] == "error":
        raise RuntimeError(f"the cell {cell} failed:\n{result['message']}")
    return result


def read_notes(notes: Path) -> dict[str, dict[str, Any]]:
    """Finished cells by key; a line cut short by an interruption is measured again."""
    if not notes.exists():
        return {}
    found = {}
    for line in notes.read_text().splitlines():
        try:
            entry = json.loads(line)
        except json.JSONDecodeError:
            continue
        found[Cell(**entry["cell"]).key] = entry["result"]
    return found


def summarise(results: list[tuple[Cell, dict[str, Any]]]) -> list[dict[str, Any]]:
    """One row per member, shape and length: medians, ratios to softmax of the same round, the paper's ratios beside them."""
    by_place: dict[tuple[str, int, str], dict[int, dict[str, Any]]] = {}
    for cell, result in results:
        by_place.setdefault((cell.shape, cell.length, cell.member), {})[cell.round] = result
    rows = []
    for (shape, length, member), rounds in by_place.items():
        row: dict[str, Any] = {"member": member, "shape": shape, "length": length}
        good = {r: result for r, result in rounds.items() if result["status"] == "ok"}
        row["status"] = "ok" if good else next(iter(rounds.values()))["status"]
        if good:
            row["parameters"] = next(iter(good.values()))["parameters"]
            reference = {
                r: result for r, result in by_place[shape, length, "softmax"].items() if result["status"] == "ok"
            }
            for measure in MEASURES:
                row[measure] = statistics.median(result[measure] for result in good.values())
                shared = [good[r][measure] / reference[r][measure] for r in good if r in reference]
                row[f"{measure}_ratio"] = statistics.median(shared) if shared else None
            sizes = [result["parameters"] for result in reference.values()]
            row["parameters_ratio"] = row["parameters"] / sizes[0] if sizes else None
        row["paper"] = paper_ratios(member, shape, length)
        rows.append(row)
    return rows
