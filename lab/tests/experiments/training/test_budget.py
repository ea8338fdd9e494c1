"""Accumulation, precision, checkpointing, clipping and the one-cycle rate: what a budget promises is what the trainer does."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

from lab.tests.experiments.training import tiny_run
from lln_lab.experiments.budgets import budget_of, changed
from lln_lab.experiments.lra import PRESETS
from lln_lab.experiments.models.checkpointing import checkpoint_layers
from lln_lab.experiments.models.roberta import LongClassifier, Size
from lln_lab.experiments.training import Budget, Run, train


def losses(folder: Path, monkeypatch: pytest.MonkeyPatch, **change: Any) -> dict[str, Any]:
    budget = dataclasses.replace(tiny_run.BUDGET, steps=6, save_every=None, watch_every=None, log_every=1, **change)
    monkeypatch.setattr(tiny_run, "BUDGET", budget)
    return tiny_run.start(folder, dropout=0.0)


def test_a_step_in_pieces_is_the_same_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, pieces, again = (
        losses(tmp_path / name, monkeypatch, **change)
        for name, change in (("a", {}), ("b", {"accumulate": 2}), ("c", {"accumulate": 1, "checkpointing": True}))
    )
    for other in (pieces, again):
        for x, y in zip(whole["history"], other["history"], strict=True):
            if "loss" in x:
                assert y["loss"] == pytest.approx(x["loss"], rel=1e-5)
                assert y["grad_norm"] == pytest.approx(x["grad_norm"], rel=1e-4)


def test_a_batch_that_cannot_be_cut_is_refused_in_words() -> None:
    budget = Budget(steps=1, batch=6, learning_rate=1.0, accumulate=4)
    with pytest.raises(ValueError, match="a batch of 6 cannot be split into 4 equal pieces"):
        budget.at_once()
    assert dataclasses.replace(budget, batch=16).at_once(processes=2) == 2


def test_the_loss_scale_of_float16_halves_on_overflow_and_doubles_after_its_window(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calm = losses(tmp_path / "a", monkeypatch, precision="float16", loss_scale=8.0, loss_scale_window=2)
    scales = [x["inverse_loss_scale"] for x in calm["history"] if "loss" in x]
    assert scales == [1 / 8, 1 / 16, 1 / 16, 1 / 32, 1 / 32, 1 / 64]
    wild = losses(tmp_path / "b", monkeypatch, precision="float16", loss_scale=2.0**40, loss_scale_window=2)
    scales = [x["inverse_loss_scale"] for x in wild["history"] if "loss" in x]
    assert scales == [2.0 ** (n - 39) for n in range(6)], "an overflow halves the scale, and its step is not taken"


def test_the_rate_of_one_cycle_rises_to_its_peak_and_falls_to_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = losses(tmp_path, monkeypatch, schedule="one_cycle")
    rates = [x["learning_rate"] for x in found["history"] if "loss" in x]
    assert rates[0] == pytest.approx(1e-3 / 25) and max(rates) == pytest.approx(1e-3) and rates.index(max(rates)) == 1
    assert rates[-1] < 1e-6 and rates[1:] == sorted(rates[1:], reverse=True)


def test_single_numbers_of_the_gradient_are_clipped(tmp_path: Path) -> None:
    """Steepest descent is not at hand, but Adam's first moments after one step are a tenth of the clipped gradient."""

    class Line(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(2))

        def forward(self, labels: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"loss": (self.weight * torch.tensor([100.0, 0.25])).sum() + 0 * labels.sum()}

    budget = Budget(steps=1, batch=1, learning_rate=0.5, clip=0.0, clip_value=1.0, adam_epsilon=1.0, save_every=None)
    model = Line()
    train(Run("x", "y", 0, budget), tmp_path, lambda: model, [0], [0], lambda row, _: {"labels": row})  # type: ignore[arg-type]
    moved = (-model.weight / 0.5).tolist()  # g / (|g| + 1), g clipped
    assert moved == pytest.approx([1 / 2, 0.25 / 1.25], rel=1e-4)


@pytest.mark.parametrize("attention", ["softmax", "lln_diag", "performer", "flash"])
def test_checkpointed_layers_have_the_same_gradients_and_keep_less(attention: str) -> None:
    (plain, gradients), (less, again) = (kept_and_gradients(attention, again) for again in (False, True))
    assert less < plain / 2
    for x, y in zip(gradients, again, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-6)


def kept_and_gradients(attention: str, checkpointed: bool) -> tuple[int, list[torch.Tensor]]:
    torch.manual_seed(0)
    size = Size(layers=2, width=16, heads=2, feed_forward=32, length=64, dropout=0.1)
    model = LongClassifier(size, 9, 3, attention)
    if checkpointed:
        assert checkpoint_layers(model) == 2
    ids = torch.randint(1, 9, (2, 64), generator=torch.Generator().manual_seed(1))
    kept: list[int] = []
    torch.manual_seed(1)
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x.numel()) or x, lambda x: x):
        loss = model(ids, torch.ones_like(ids, dtype=torch.bool), torch.tensor([0, 2]))["loss"]
    loss.backward()
    return sum(kept), [p.grad for p in model.parameters() if p.grad is not None]


def test_a_task_keeps_its_own_budget_when_it_is_shortened() -> None:
    settings = changed(PRESETS["paper"], lambda budget: budget.shortened(5_000))
    text, retrieval = budget_of(settings, "text"), budget_of(settings, "retrieval")
    assert (text.steps, text.warmup, text.batch) == (5_000, 8, 32)
    assert (retrieval.steps, retrieval.warmup, retrieval.batch, retrieval.learning_rate) == (5_000, 80, 16, 2e-4)
