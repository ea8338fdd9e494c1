"""Quality against length: every length goes on from the weights of the length before."""

import math
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from lln_lab.experiments import length
from lln_lab.experiments.models.roberta import Size
from lln_lab.experiments.training import Budget

TINY = length.Settings(
    size=Size(layers=1, width=16, heads=2, feed_forward=16, dropout=0.0),
    budget=Budget(steps=2, batch=8, learning_rate=1e-2, log_every=1),
    later_steps=1,
    tokens=128,
    lengths=(16, 32),
    longest_softmax=16,
    tasks=("recall",),
    contestants=("lln_diag",),
    validation_rows=4,
)


def test_a_length_goes_on_from_the_one_before(tmp_path: Path) -> None:
    found = length.run(TINY, tmp_path)
    assert [r["task"] for r in found["runs"]] == ["recall/16", "recall/32"]
    assert found["tables"][0]["columns"] == ["attention", "16", "32"]
    shutil.rmtree(tmp_path / "recall-32_lln_diag_seed0")
    weights = tmp_path / "recall-16_lln_diag_seed0" / "model" / "model.safetensors"
    held = load_file(weights)
    save_file({name: 0 * x if name.startswith("head.") else x for name, x in held.items()}, weights)
    again = length.run(TINY, tmp_path)["runs"][1]
    assert again["history"][0]["loss"] == pytest.approx(math.log(8), abs=1e-4)  # no head: every value as likely
    assert found["runs"][1]["history"][0]["loss"] != pytest.approx(math.log(8), abs=1e-4)


def test_tokens_of_a_step_stay_as_long_as_samples_last() -> None:
    cpu = length.PRESETS["cpu"]
    batches = {n: length.budget_at(n, cpu).batch for n in (64, 128, 1024, 32_768)}
    assert batches == {64: 64, 128: 64, 1024: 8, 32_768: 4}
    assert (length.budget_at(64, cpu).steps, length.budget_at(128, cpu).steps) == (500, 40)


def test_softmax_stops_where_it_would_not_fit(tmp_path: Path) -> None:
    found = length.run(replace(TINY, contestants=("softmax", "elu")), tmp_path)
    assert [(r["label"], r["task"]) for r in found["runs"]] == [
        ("softmax", "recall/16"), ("elu", "recall/16"), ("elu", "recall/32"),
    ]  # fmt: skip


def test_lengths_that_do_not_grow_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="must be increasing; got 64, 32"):
        length.run(replace(TINY, lengths=(64, 32)), tmp_path)
