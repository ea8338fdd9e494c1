"""TabPFN's model on tiny random weights: what rows see, conversion, distillation, and the command's numbers."""

import copy
import itertools
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import lln
from lln_lab.tabular.distil import Plan as DistillationPlan
from lln_lab.tabular.distil import distil, drawn_tasks, end_loss, layer_loss
from lln_lab.tabular.measure import Plan, run
from lln_lab.tabular.model import Sizes, TabPFN, classify, from_checkpoint, standardised

TINY = Sizes(features=40, width=32, heads=2, hidden=48, layers=2)


@pytest.fixture
def model() -> TabPFN:
    """Queries and keys three times as large as they are drawn: a trained model's attention is sharp, not nearly uniform."""
    torch.manual_seed(0)
    found = TabPFN(TINY).eval()
    with torch.no_grad():
        for layer in found.layers:
            layer.self_attn.in_proj_weight[: 2 * TINY.width] *= 3.0  # type: ignore[union-attr,index,operator]
    return found


def linear(model: TabPFN) -> TabPFN:
    converted = copy.deepcopy(model)
    tasks = drawn_tasks(64, seed=1)
    lln.convert(converted, [next(tasks) for _ in range(3)])
    return converted


@pytest.mark.parametrize("kind", ["softmax", "lln"])
def test_rows_are_a_set_and_test_rows_do_not_see_each_other(model: TabPFN, kind: str) -> None:
    model = model if kind == "softmax" else linear(model)
    x, y = torch.randn(1, 30, 5), torch.randint(3, (1, 20))
    with torch.no_grad():
        whole = model(x, y)
        order = torch.randperm(20)
        shuffled = model(torch.cat([x[:, order], x[:, 20:]], dim=1), y[:, order])
        alone = model(x[:, :21], y)
    torch.testing.assert_close(shuffled, whole, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(alone, whole[:, :1], rtol=1e-4, atol=1e-5)


def test_every_attention_becomes_linear(model: TabPFN) -> None:
    report = lln.convert(copy.deepcopy(model), [next(drawn_tasks(64, seed=1))])
    assert len(report.replaced) == TINY.layers and not report.kept


def test_columns_are_in_spreads_of_the_training_rows_and_constant_ones_go() -> None:
    x = torch.randn(200, 3, dtype=torch.float64) * 5 + 7
    x[:, 1] = 3
    x[150, 0] = 1e6
    found = standardised(x, 100)
    assert found.shape == (200, 2)
    torch.testing.assert_close(found[:100].mean(dim=0), torch.zeros(2), atol=1e-5, rtol=0)
    torch.testing.assert_close(found[:100].std(dim=0), torch.ones(2), atol=1e-2, rtol=0)
    assert 4 < found[150, 0] < 4 + 5  # far out, pulled in by a logarithm


def test_both_losses_are_zero_for_the_teacher_itself_and_not_for_another(model: TabPFN) -> None:
    x, y = next(drawn_tasks(64, seed=0))
    converted = linear(model)
    for loss in (layer_loss, end_loss):
        assert float(loss(model, copy.deepcopy(model), x, y).detach()) == pytest.approx(0, abs=1e-6)
        assert float(loss(model, converted, x, y).detach()) > 1e-6


def test_the_numbers_of_the_command(model: TabPFN) -> None:
    plan = Plan(
        sets=("iris",),
        splits=1,
        calibration_tasks=2,
        distillation=DistillationPlan(seconds=0.6, rows=64),
        long_rows=2000,
    )
    before = copy.deepcopy(model.state_dict())
    result = run(model, plan, lambda line: None)
    assert set(result["accuracy"]) == {"softmax", "converted", "distilled"}
    assert min(result["steps"].values()) > 0 and result["long_table"]["rows"] == 2000
    assert set(result["losses"]) == set(result["steps"]) == {"layers", "end"}
    assert all(torch.equal(x, before[name]) for name, x in model.state_dict().items())  # the teacher stays as it was


@pytest.mark.parametrize(("share", "loss"), [(1.0, layer_loss), (0.0, end_loss)])
def test_each_stage_of_distilling_lowers_its_own_loss_on_tasks_not_seen(
    model: TabPFN, share: float, loss: Callable[..., torch.Tensor]
) -> None:
    """A clock that ticks once a step: as many steps on every machine."""
    student = linear(model)
    plan = DistillationPlan(60.0, layer_share=share, rows=64, learning_rate=2e-3, end_learning_rate=1e-3)
    unseen = list(itertools.islice(drawn_tasks(64, seed=5), 8))

    def told() -> float:
        return sum(float(loss(model, student, *task).detach()) for task in unseen)

    before = told()
    losses = distil(model, student, plan, clock=itertools.count().__next__)
    assert {name: len(values) for name, values in losses.items()} == {"layers": 59 * share, "end": 59 * (1 - share)}
    assert told() < 0.96 * before


def test_distilling_layer_by_layer_brings_attention_nearer(model: TabPFN) -> None:
    converted, tasks = linear(model), drawn_tasks(64, seed=3)
    task = next(tasks)
    before = float(layer_loss(model, converted, *task).detach())
    learning = [x for layer in converted.layers for x in layer.self_attn.parameters()]  # type: ignore[union-attr]
    optimiser = torch.optim.Adam([x.requires_grad_() for x in learning], lr=1e-2)
    for _ in range(15):
        optimiser.zero_grad()
        layer_loss(model, converted, *task).backward()
        optimiser.step()
    assert float(layer_loss(model, converted, *task).detach()) < 0.7 * before


def test_wrong_files_and_tables_are_refused(tmp_path: Path, model: TabPFN) -> None:
    torch.save(({"module.encoder.weight": torch.zeros(2, 2)}, None, {}), tmp_path / "other.cpkt")
    with pytest.raises(ValueError, match="not a checkpoint of TabPFN v1"):
        from_checkpoint(tmp_path / "other.cpkt")
    with pytest.raises(ValueError, match="up to 40 features, got 41"):
        classify(model, torch.randn(20, 41), torch.tensor([0, 1]))
    with pytest.raises(ValueError, match="up to 10 classes"):
        classify(model, torch.randn(20, 4), torch.arange(12))
