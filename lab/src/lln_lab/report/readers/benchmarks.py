"""Benchmarks: time and memory against length, one reader for each form of result."""

from collections.abc import Callable
from typing import Any

from lln_lab.report.blocks import Block, Table
from lln_lab.report.plots import Axis, Line, Plot, against_length, choices, finite
from lln_lab.report.readers.generic import flat_table, tables
from lln_lab.report.readers.reader import SPEED, Reader


def _rows_have(*keys: str) -> Callable[[dict[str, Any]], bool]:
    def knows(data: dict[str, Any]) -> bool:
        rows = data.get("rows")
        return isinstance(rows, list) and bool(rows) and all(isinstance(r, dict) and r.keys() >= {*keys} for r in rows)

    return knows


def kernel_times(data: dict[str, Any]) -> list[Block]:
    passes = {False: "forward", True: "forward and backward"}
    series: dict[tuple[str, str, str], tuple[list[float], list[float | None]]] = {}
    for timing in data["timings"]:
        for method, measured in timing["methods"].items():
            x, y = series.setdefault((passes[timing["backward"]], str(timing["threads"]), method), ([], []))
            x.append(timing["length"])
            y.append(measured["milliseconds"] / 1e3 if finite(measured["milliseconds"]) else None)
    lines = [Line({"pass": p, "threads": t, "attention": m}, x, y) for (p, t, m), (x, y) in series.items()]
    selectors = [choices("Pass", "pass", lines), choices("Threads", "threads", lines)]
    return [
        Plot("Time against length", Axis("length", log=True), Axis("time", "s", True), "attention", lines, selectors)
    ]


def kernel_memory(data: dict[str, Any]) -> list[Block]:
    memory = data["memory"]
    if memory is None:  # --native-only measures none
        return []
    return [flat_table(memory["methods"], f"Memory at {memory['length']:,} tokens", "method")]


def operator_growth(data: dict[str, Any]) -> list[Block]:
    growth = data["growth"]
    measured = {"time": {name: (growth["lengths"], seconds) for name, seconds in growth["seconds"].items()}}
    return [against_length("Time against length", measured)]


def operator_against_eager(data: dict[str, Any]) -> list[Block]:
    against = data["against_eager"]
    return [flat_table(against["methods"], f"Against plain PyTorch at {against['length']:,} tokens", "method")]


ZOO = {
    "a training step of the encoder": ("step_seconds", "s"),
    "attention, forward": ("attention_forward_seconds", "s"),
    "attention, forward and backward": ("attention_train_seconds", "s"),
    "peak memory": ("peak_bytes", "B"),
}


def zoo_growth(data: dict[str, Any]) -> list[Block]:
    lines = [
        Line(
            {"measure": name, "shape": shape, "attention": member},
            [r["length"] for r in rows],
            [r.get(key) for r in rows],
        )
        for name, (key, _) in ZOO.items()
        for shape in dict.fromkeys(row["shape"] for row in data["rows"])
        for member in dict.fromkeys(row["member"] for row in data["rows"])
        for rows in [[row for row in data["rows"] if (row["shape"], row["member"]) == (shape, member)]]
    ]
    axes = {name: Axis("memory" if unit == "B" else "time", unit, True) for name, (_, unit) in ZOO.items()}
    selectors = [choices("Measure", "measure", lines, axes), choices("Shape", "shape", lines)]
    x, y = Axis("length", log=True), Axis("time", "s", True)
    return [Plot("Time and memory against length", x, y, "attention", lines, selectors)]


def zoo_beside_the_paper(data: dict[str, Any]) -> list[Block]:
    columns = ["attention", "shape", "length", "time", "paper's time", "memory", "paper's memory"]
    rows = []
    for row in data["rows"]:
        paper = row.get("paper") or {}
        ours = [row.get("step_seconds_ratio"), paper.get("time"), row.get("peak_bytes_ratio"), paper.get("memory")]
        rows.append([row["member"], row["shape"], row["length"], *ours])
    return [Table(columns, rows, "As ratios to softmax", "Of a training step, beside the paper's Tables 2 and 4.")]


def decoding(data: dict[str, Any]) -> list[Block]:
    names = {"time": "seconds_per_token", "memory": "cache_bytes"}
    members = dict.fromkeys(row["attention"] for row in data["rows"])
    measured = {
        name: {
            member: ([r["context"] for r in rows], [r.get(key) for r in rows])
            for member in members
            for rows in [[row for row in data["rows"] if row["attention"] == member]]
        }
        for name, key in names.items()
    }
    return [against_length("Decoding one token", measured, "context", "Time of a token and memory of the cache.")]


def encoding(data: dict[str, Any]) -> list[Block]:
    lengths = [row["length"] for row in data["rows"]]
    names = dict.fromkeys(name for row in data["rows"] for name in row["seconds"])
    measured = {"time": {name: (lengths, [row["seconds"].get(name) for row in data["rows"]]) for name in names}}
    return [against_length("Time against length", measured)]


def _is_kernels(data: dict[str, Any]) -> bool:
    return isinstance(data.get("timings"), list) and "memory" in data


def _is_operator(data: dict[str, Any]) -> bool:
    return "growth" in data and "against_eager" in data


def _reader(
    heading: str, knows: Callable[[dict[str, Any]], bool], *parts: Callable[[dict[str, Any]], list[Block]]
) -> Reader:
    return Reader(SPEED, knows, lambda data: heading, parts)


READERS = (
    _reader("Kernels against bare matrix products", _is_kernels, kernel_times, kernel_memory),
    _reader("The operator", _is_operator, operator_growth, operator_against_eager),
    _reader("The zoo", _rows_have("member", "shape", "length", "status"), zoo_growth, zoo_beside_the_paper),
    _reader("Decoding", _rows_have("attention", "context", "seconds_per_token"), decoding, tables),
    _reader("Encoding long documents", _rows_have("length", "seconds", "ratio"), encoding, tables),
)
