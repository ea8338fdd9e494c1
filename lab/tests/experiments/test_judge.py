"""The committed verdicts are what today's rules say of the committed numbers."""

import json
from pathlib import Path

import pytest

from lln_lab.experiments.judge import verdicts
from lln_lab.experiments.verdict import OPEN

RESULTS = Path(__file__).parents[3] / "docs" / "results"
JUDGED = [path for path in sorted(RESULTS.rglob("*.json")) if '"verdicts": [' in path.read_text()]


@pytest.mark.parametrize("path", JUDGED, ids=lambda path: path.relative_to(RESULTS).with_suffix("").as_posix())
def test_the_committed_verdicts_follow_from_the_committed_numbers(path: Path) -> None:
    found = json.loads(path.read_text())
    again = verdicts(found)
    if again is None:
        pytest.skip("a result of another kind, with verdicts of its own")
    assert [verdict.as_data() for verdict in again] == found["verdicts"]


def test_results_with_runs_are_among_them() -> None:
    assert {"fig2", "fig8", "table1", "table3", "lra", "fig10"} <= {path.stem for path in JUDGED}


def test_one_seed_never_gives_a_verdict_on_a_comparison() -> None:
    found = json.loads((RESULTS / "table3.json").read_text())
    assert len({r["seed"] for r in found["runs"]}) == 1
    assert {verdict["outcome"] for verdict in found["verdicts"]} == {OPEN}
    assert all("a spread needs 3 seeds" in verdict["numbers"] for verdict in found["verdicts"])
