"""A dry run: what a preset would cost, counted, and one tiny step of its model, done.

Weights, flops and bytes are counted for one sample of the full length with tensors that have shapes and no numbers. Layers are
alike, so models of two and of four layers tell what one of twelve costs:

    c(L)  =  c(2) + (L - 2) / 2 * (c(4) - c(2))

`Planned.counted` is the forward pass as it is counted, where the model's own asks for numbers (which tokens are masked). Then a
model of the full width, of two layers at most, trains for one step through the trainer that the run itself uses: the same
precision, pieces and optimiser, and invented samples (of RoBERTa with few tokens).
"""

import math
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from lln.zoo.encoder import count_parameters
from lln_lab.experiments.models.checkpointing import checkpoint_layers
from lln_lab.experiments.training import Budget, Run, train
from lln_lab.experiments.training.run import processes

DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16}
BYTES_OF_A_WEIGHT = 16  # the weight, its gradient and Adam's two moments, in float32
STEPPED_LAYERS = 2
FEW_TOKENS = 16  # of the step, where float16 products of the full length take a CPU minutes


@dataclass(frozen=True)
class Planned:
    """A model that a run would train."""

    task: str
    attention: str
    budget: Budget
    layers: int
    build: Callable[[int], nn.Module]  # number of layers -> model
    samples: Callable[[int], dict[str, Tensor]]  # how many -> what `forward` takes
    counted: Callable[[Any, dict[str, Tensor]], Tensor] = lambda model, given: model(**given)["loss"]
    stepped: Callable[[int], dict[str, Tensor]] | None = (
        None  # shorter ones for the step, where full ones take too long
    )


@dataclass(frozen=True)
class Counted:
    weights: int
    flops: int  # of a sample, forward and backward
    saved: int  # bytes that a sample keeps for the backward pass


@dataclass(frozen=True)
class Checked:
    planned: Planned
    counted: Counted
    loss: float  # of the tiny step

    @property
    def at_once(self) -> int:
        return self.planned.budget.at_once(processes().num_processes)

    def row(self) -> list[Any]:
        """As in COLUMNS."""
        held = BYTES_OF_A_WEIGHT * self.counted.weights / 2**30
        kept = self.at_once * self.counted.saved / 2**30
        return [
            self.planned.task, self.planned.attention, f"{self.counted.weights:,}",
            f"{self.planned.budget.batch * self.counted.flops / 1e12:.3g}", self.at_once, f"{held:.2f}", f"{kept:.2f}",
            f"{self.loss:.3f}",
        ]  # fmt: skip


COLUMNS = ["task", "attention", "weights", "TFLOP", "at once", "GB held", "GB kept", "loss"]
NOTE = (
    "Counted without running: TFLOP of the matrix products of a step, samples that a process computes at once, GB of weights "
    "with gradients and Adam's moments, GB that those samples keep for the backward pass. Layers are taken as alike, and "
    "counted in models of two and four. The loss is of a real tiny step: full width, "
    f"{STEPPED_LAYERS} layers at most, few samples, and of RoBERTa few tokens."
)


def check(planned: Iterable[Planned]) -> dict[str, Any]:
    """The table of all models, as results have tables. A step that does not end in a number is an error."""
    found = []
    for each in planned:
        checked = Checked(each, count(each), tiny_step(each))
        if not math.isfinite(checked.loss):
            raise ValueError(f"the tiny step of {each.attention} on {each.task} ended at a loss of {checked.loss}")
        found.append(checked)
    title = "Check: what the models of this run cost"
    return {"title": title, "note": NOTE, "columns": COLUMNS, "rows": [checked.row() for checked in found]}


def count(planned: Planned) -> Counted:
    if planned.layers <= 4:
        return _count(planned, planned.layers)
    two, four = (_count(planned, layers) for layers in (2, 4))

    def at_full_depth(of_two: int, of_four: int) -> int:
        return of_two + (planned.layers - 2) * (of_four - of_two) // 2

    return Counted(
        at_full_depth(two.weights, four.weights),
        at_full_depth(two.flops, four.flops),
        at_full_depth(two.saved, four.saved),
    )


def _count(planned: Planned, layers: int) -> Counted:
    model = planned.build(layers).train()
    if planned.budget.checkpointing:
        checkpoint_layers(model)
    kept: dict[int, torch.UntypedStorage] = {}  # holding the storage keeps its number from being used again

    def keep(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage()._cdata] = tensor.untyped_storage()
        return tensor

    dtype = DTYPES.get(planned.budget.precision)
    with FakeTensorMode(allow_non_fake_inputs=True) as fake, FlopCounterMode(display=False) as counter:
        inputs: dict[str, Tensor] = {
            name: fake.from_tensor(x) for name, x in planned.samples(2).items()
        }  # a batch norm needs two
        with (
            torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
            torch.autocast("cpu", dtype, enabled=dtype is not None),
        ):
            loss = planned.counted(model, inputs)
        loss.backward()
        weights = {fake.from_tensor(p).untyped_storage()._cdata for p in model.parameters()}
    saved = sum(storage.nbytes() for number, storage in kept.items() if number not in weights)
    return Counted(count_parameters(model), counter.get_total_flops() // 2, saved // 2)


def tiny_step(planned: Planned) -> float:
    """The loss of one step of two samples, or of one in each piece."""
    pieces = min(planned.budget.accumulate, 2)
    budget = replace(
        planned.budget, steps=1, warmup=0, batch=max(2, pieces) * processes().num_processes, accumulate=pieces,
        save_every=None, evaluate_every=None, watch_every=None, log_every=1, loss_scale=min(planned.budget.loss_scale, 128.0),
    )  # fmt: skip
    samples = (planned.stepped or planned.samples)(budget.batch)
    rows = [{name: x[i] for name, x in samples.items()} for i in range(budget.batch)]
    run = Run(planned.task, planned.attention, 0, budget)
    with tempfile.TemporaryDirectory() as folder:
        found = train(
            run, Path(folder), lambda: planned.build(min(planned.layers, STEPPED_LAYERS)), rows, rows[:1],
            lambda row, _: row, collate=_stacked,
        )  # fmt: skip
    return float(next(entry["loss"] for entry in found["history"] if "loss" in entry))


def _stacked(rows: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}


def tokens(vocabulary: int, length: int, count: int) -> Tensor:
    """(count, length) ids, none of them padding."""
    return 5 + torch.arange(count * length).view(count, length) % (vocabulary - 5)
