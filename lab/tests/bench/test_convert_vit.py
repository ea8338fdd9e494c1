"""What `lln bench vit` measures: a row for each seed and each conversion, with its stages."""

from typer.testing import CliRunner

from lln_lab.bench.convert_vit import Plan, run
from lln_lab.cli.bench import app as bench


def test_a_row_for_each_reach_of_near_far_attention_and_each_other_attention() -> None:
    plan = Plan(
        width=16, heads=1, layers=1, steps=2, batch=8, calibration=1, distil_steps=3, weight_steps=2, seeds=(0,),
        neighbours=(0, 1), attentions=("lln_near_far", "elu"),
    )  # fmt: skip
    found = run(plan, lambda line: None)
    assert [(row["attention"], row.get("neighbours")) for row in found["rows"]] == [
        ("elu", None), ("lln_near_far", 0), ("lln_near_far", 1),
    ]  # fmt: skip
    softmax = {row["softmax"] for row in found["rows"]}
    assert len(softmax) == 1 and 0 <= softmax.pop() <= 100  # one model for all
    assert all("distilled" in row for row in found["rows"] if row["attention"] == "lln_near_far")
    assert "distilled" not in found["rows"][0]  # it has nothing of its own to learn, only the model's weights
    assert all("all weights" in row for row in found["rows"])


def test_neighbours_are_of_near_far_attention_only() -> None:
    result = CliRunner().invoke(bench, ["vit", "--attention", "lln", "--neighbours", "1"], env={"COLUMNS": "200"})
    assert result.exit_code == 2 and "only lln_near_far has neighbours" in result.output
