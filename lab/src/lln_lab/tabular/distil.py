"""A converted TabPFN taught by the original, on random tasks: first each attention by itself, then the model as a whole.

    layer by layer:  sum over layers of |a_student(h) - a_teacher(h)|^2 / |a_teacher(h)|^2, h the teacher's rows before it
    end to end:      KL(teacher's classes || student's classes) over the test rows

Only attention learns: its projections, and alpha, beta and bias of its heads. Nothing is added, so inference costs what it did.
"""

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lln_lab.tabular.model import TabPFN, standardised
from lln_lab.tabular.tasks import random_task


@dataclass(frozen=True)
class Plan:
    """How long, on what, and how fast."""

    seconds: float = 300.0  # of CPU time, for both stages
    layer_share: float = 0.7  # of them for the first
    rows: int = 512
    learning_rate: float = 1e-3
    end_learning_rate: float = 5e-5
    seed: int = 0


def distil(
    teacher: TabPFN, student: TabPFN, plan: Plan, clock: Callable[[], float] = time.process_time
) -> dict[str, list[float]]:
    """Train the student in place; the losses of both stages, step by step. The clock tells the time spent, in seconds."""
    learning = [x for layer in student.layers for x in layer.self_attn.parameters()]  # type: ignore[union-attr]
    student.requires_grad_(False)
    for x in learning:
        x.requires_grad_(True)
    tasks = drawn_tasks(plan.rows, plan.seed)
    first = plan.seconds * plan.layer_share
    last = plan.seconds - first
    losses = {
        "layers": _train(
            learning, plan.learning_rate, first, clock, lambda: layer_loss(teacher, student, *next(tasks))
        ),
        "end": _train(learning, plan.end_learning_rate, last, clock, lambda: end_loss(teacher, student, *next(tasks))),
    }
    student.requires_grad_(False)
    return losses


def layer_loss(teacher: TabPFN, student: TabPFN, x: Tensor, y: Tensor) -> Tensor:
    """How far each attention is from the teacher's on the teacher's own rows, over its power, averaged over layers."""
    training, terms = y.shape[1], []
    with torch.no_grad():
        h = teacher.embed(x, y)
    for original, layer in zip(teacher.layers, student.layers, strict=True):
        with torch.no_grad():
            seen = h[:, :training]
            wanted = _attend(original, h, seen)
        terms.append((_attend(layer, h, seen) - wanted).square().sum() / wanted.square().sum())
        with torch.no_grad():
            h = original(h, training)
    return torch.stack(terms).mean()


def end_loss(teacher: TabPFN, student: TabPFN, x: Tensor, y: Tensor) -> Tensor:
    """KL divergence of the student's classes from the teacher's."""
    with torch.no_grad():
        wanted = F.log_softmax(teacher(x, y), dim=-1)
    found = F.log_softmax(student(x, y), dim=-1)
    return F.kl_div(found.flatten(0, 1), wanted.flatten(0, 1), reduction="batchmean", log_target=True)


def _attend(layer: nn.Module, h: Tensor, seen: Tensor) -> Tensor:
    out: Tensor = layer.self_attn(h, seen, seen, need_weights=False)[0]  # type: ignore[operator]
    return out


def drawn_tasks(rows: int, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """x (1, rows, features) and y (1, training rows), as the model takes them, without end."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        training = int(torch.randint(rows // 4, rows * 7 // 8, (), generator=generator))
        x, y = random_task(rows, training, generator)
        if int(y.max()) > 0:
            yield standardised(x, training)[None], y[None]


def _train(
    learning: list[Tensor],
    rate: float,
    seconds: float,
    clock: Callable[[], float],
    loss_of_next: Callable[[], Tensor],
) -> list[float]:
    """Adam, its rate going to zero along a half cosine as the time runs out."""
    optimiser = torch.optim.Adam(learning, lr=rate, betas=(0.9, 0.95))
    losses: list[float] = []
    start = clock()
    while (spent := (clock() - start) / max(seconds, 1e-9)) < 1:
        optimiser.param_groups[0]["lr"] = rate * min(1.0, (len(losses) + 1) / 10) * (1 + math.cos(math.pi * spent)) / 2
        loss = loss_of_next()
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(learning, 1.0)
        optimiser.step()
        losses.append(float(loss.detach()))
    return losses
