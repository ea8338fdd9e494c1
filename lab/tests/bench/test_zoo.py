"""The benchmark: cells in processes of their own, limits, going on after an interruption, ratios, the paper's numbers."""

import json
from pathlib import Path

import pytest

from lln.zoo import names
from lln_lab.bench import zoo as bench
from lln_lab.bench.peers import PEERS
from lln_lab.bench.zoo import Plan, read_notes, run, run_cell, summarise
from lln_lab.bench.zoo_cell import Cell
from lln_lab.bench.zoo_paper import paper_ratios

TINY = {"shape": "small", "embed_dim": 16, "num_heads": 2, "feed_forward": 32, "layers": 1, "round": 0, "steps": 1}


def cell(member: str, **fields: float) -> Cell:
    return Cell(**{**TINY, "member": member, "length": 64, **fields})  # type: ignore[arg-type]


def test_a_cell_measures_time_and_memory() -> None:
    found = run_cell(cell("lln_diag"), 120)
    assert found["status"] == "ok"
    assert min(found[key] for key in ("step_seconds", "attention_forward_seconds", "attention_train_seconds")) > 0
    assert found["parameters"] == 2256


def test_a_cell_without_memory_says_so() -> None:
    assert run_cell(cell("softmax", length=65536, embed_dim=1024, memory_limit=0.7), 120)["status"] == "OOM"


def test_a_cell_without_time_says_so() -> None:
    assert run_cell(cell("softmax", length=16384), 0.01)["status"] == "timeout"


def test_a_run_goes_on_where_it_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = Plan(lengths={"small": [64, 128]}, members=["elu"], rounds=2, steps=1)
    notes = tmp_path / "notes.jsonl"
    cells = list(plan.cells())
    assert [c.member for c in cells[:2]] == ["softmax", "elu"] and len(cells) == 8
    measured = []

    def measure(which: Cell, limit: float) -> dict[str, object]:
        if len(measured) == 3:
            raise KeyboardInterrupt
        measured.append(which)
        seconds = which.length * (2.0 if which.member == "elu" else 1.0)
        return {"status": "ok", "parameters": 1, **dict.fromkeys(bench.MEASURES, seconds)}

    monkeypatch.setattr(bench, "run_cell", measure)
    with pytest.raises(KeyboardInterrupt):
        run(plan, notes)
    notes.write_text(notes.read_text() + '{"cell": {"mem')  # the line that was being written
    assert len(read_notes(notes)) == 3
    notes.write_text("\n".join(notes.read_text().splitlines()[:3]) + "\n")
    measured.clear()
    with pytest.raises(KeyboardInterrupt):
        run(plan, notes)
    assert measured == cells[3:6]
    measured.clear()
    rows = run(plan, notes)["rows"]
    assert measured == cells[6:]
    assert {row["step_seconds_ratio"] for row in rows if row["member"] == "elu"} == {2.0}


def test_a_member_that_ran_out_of_memory_is_not_tried_at_greater_lengths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = []

    def measure(which: Cell, limit: float) -> dict[str, object]:
        tried.append((which.member, which.length))
        failed = which.member == "softmax" and which.length >= 128
        good = {"parameters": 1, **dict.fromkeys(bench.MEASURES, 1.0)}
        return {"status": "OOM"} if failed else {"status": "ok", **good}

    monkeypatch.setattr(bench, "run_cell", measure)
    plan = Plan(lengths={"small": [64, 128, 256]}, members=["elu"], rounds=1)
    rows = run(plan, tmp_path / "notes.jsonl")["rows"]
    assert ("softmax", 256) not in tried
    status = {(row["member"], row["length"]): row["status"] for row in rows}
    assert status["softmax", 256] == "OOM" and status["elu", 256] == "ok"
    assert next(row for row in rows if row["member"] == "elu" and row["length"] == 256)["step_seconds_ratio"] is None


def test_ratios_are_taken_inside_a_round() -> None:
    results = []
    for round_, load in enumerate((1.0, 10.0, 3.0)):  # the machine slows down between rounds, not inside them
        for member, seconds in (("softmax", 2.0), ("elu", 1.0)):
            taken = dict.fromkeys(bench.MEASURES, load * seconds)
            results.append((cell(member, round=round_), {"status": "ok", "parameters": 5, **taken}))
    row = next(row for row in summarise(results) if row["member"] == "elu")
    assert row["step_seconds_ratio"] == 0.5 and row["step_seconds"] == 3.0


def test_the_papers_ratios_are_those_of_its_tables() -> None:
    assert paper_ratios("lln", "roberta", 4096) == {"time": 3.2 / 6.8, "memory": 7.5 / 32.1}
    assert paper_ratios("lln", "roberta", 8192) is None
    assert paper_ratios("elu", "roberta", 512) is None
    assert paper_ratios("lln_diag", "small", 2048) == {"time": 1774 / 5905, "memory": 821 / 4458}


def test_a_plan_refuses_what_does_not_exist() -> None:
    with pytest.raises(ValueError, match="no member 'nothing'"):
        Plan(members=["nothing"])
    with pytest.raises(ValueError, match=r"no shape 'huge'.*roberta"):
        Plan(lengths={"huge": [1]})


def test_keys_of_cells_survive_json() -> None:
    one = cell("elu")
    assert Cell(**json.loads(one.key)) == one


def test_peers_are_compared_with_members() -> None:
    assert {peer.member for peer in PEERS} <= set(names())
