"""Distillation of any converted torch model: what the conversion added is trained until the model follows its softmax original.

    1. layer by layer  each attention on the teacher's own queries, keys and values, towards the teacher's output:
                       sum over attentions of |o - t|^2 / |t|^2
    2. end to end      the whole model, towards the teacher's outputs: |o - t|^2 / |t|^2, or a loss of the caller's

The teacher is the model itself with softmax in place of its linear attention, unless another is given.
"""

import copy
import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from lln.conversion.asked import rows_that_count
from lln.conversion.call import AttentionCall
from lln.conversion.checkpoint import fingerprint
from lln.conversion.errors import relative, relative_error
from lln.conversion.everything import (
    EVERYTHING,
    LAYER_RATE,
    RATE,
    all_weights,
    put_back_on_error,
    refuse_what_does_not_go_with_it,
)
from lln.conversion.files import description, weights_hash
from lln.conversion.installed import converted_sites, softmax_again
from lln.conversion.linear_site import AnySite
from lln.conversion.modes import evaluating, frozen
from lln.conversion.plan import END_TO_END, LAYERS, Plan, check_numbers, split
from lln.conversion.runs import as_run, refuse_one_batch
from lln.conversion.sites import Site, watching
from lln.conversion.training import Stage, Training

Loss = Callable[[Any, Any, Any], Tensor]  # (the model's output, the teacher's, the batch)
Shown = list[tuple[AnySite, AttentionCall, Tensor]]
ADDED = "added"


def distil(
    model: nn.Module,
    batches: Any,
    *,
    steps: int = 300,
    lr: float = LAYER_RATE,
    stage: str = "both",
    learn: str = ADDED,
    end_to_end_steps: int | None = None,
    end_to_end_lr: float | None = None,
    teacher: Callable[..., Any] | None = None,
    loss: Loss | None = None,
    group: int = 12,
    passes: int = 4,
    checkpoint: str | Path | None = None,
    checkpoint_every: int = 25,
    resume: bool = True,
    on_step: Callable[[str, int, float], None] | None = None,
    seed: int = 0,
) -> nn.Module:
    """Train a converted model to follow its softmax original, in place; returns the model.

    batches: as `convert` takes them, in a list. More is better: one a step, `passes` times.
    steps: in all; with stage='both', `end_to_end_steps` of them end to end, two thirds unless given.
    lr: of Adam, for the layers; end_to_end_lr: a quarter of it by default. Both rise briefly and fall to zero as a cosine.
    learn: 'added' trains what `lln.convert` added; the model's own weights do not change. 'everything' trains all weights,
        end to end, with end_to_end_lr=3e-4 by default; `unload` then gives softmax with the changed weights.
    teacher: called as the model is, end to end; None: this model with softmax (a copy, if everything learns).
        Layers follow this model with softmax anyway.
    loss: of the model's output, the teacher's output and the batch; None: the squared error over the teacher's power, of
        all floating-point tensors in the output.
    group: batches whose teacher's activations are in memory at once.
    checkpoint: a folder; with resume=True a run that was interrupted goes on from there and ends as it would have. The
        model itself is as it was before a run that was interrupted. Give the same teacher and loss: a file cannot tell.
    on_step: called with the stage, the step's number and its loss.
    """
    sites = _sites(model)
    whole_numbers = {"steps": steps, "group": group, "passes": passes, "checkpoint_every": checkpoint_every}
    check_numbers(whole_numbers, {"lr": lr, "end_to_end_lr": end_to_end_lr})
    counts, given = split(steps, stage, end_to_end_steps), _as_list(batches)
    if learn not in (ADDED, EVERYTHING):
        raise ValueError(f"learn must be {ADDED!r} or {EVERYTHING!r}, got {learn!r}")
    usual = RATE if learn == EVERYTHING else lr / 4
    rates = {LAYERS: lr, END_TO_END: usual if end_to_end_lr is None else end_to_end_lr}
    settings: dict[str, Any] = {
        "stages": counts, "rates": list(rates.values()), "group": group, "passes": passes, "seed": seed,
    }  # fmt: skip
    if learn == EVERYTHING:
        refuse_what_does_not_go_with_it(model, teacher, stage, lr)
        settings["learn"] = learn
        teacher = _original(model) if teacher is None else teacher
    if checkpoint is not None:
        settings |= _hashes(model, given)
    stages: dict[str, Stage] = {}
    for name, count in counts.items():
        plan, rate = Plan(count, len(given), group, passes, seed), rates[name]
        layers, whole = _Layers(plan, rate, model, sites), _EndToEnd(plan, rate, model, teacher, loss or relative_error)
        stages[name] = layers if name == LAYERS else whole
    folder = None if checkpoint is None else Path(checkpoint)
    with frozen(model), evaluating(model), torch.enable_grad():
        learning = all_weights(model) if learn == EVERYTHING else _added(sites)
        with put_back_on_error(learning):
            training = Training(given, learning, settings, folder, checkpoint_every)
            training.run(stages, resume, _first_error(on_step))
    return model


def _original(model: nn.Module) -> Callable[..., Any]:
    """A copy of the model as it is now, with softmax."""
    kept = copy.deepcopy(model).eval()

    def teach(*args: Any, **kwargs: Any) -> Any:
        with softmax_again(kept):
            return kept(*args, **kwargs)

    return teach


@dataclass(frozen=True)
class _Layers:
    """Shows what each site was asked and what softmax answered."""

    plan: Plan
    rate: float
    model: nn.Module
    sites: dict[Site, AnySite]

    def show(self, batches: list[Any]) -> list[Shown]:
        return [self._show(batch) for batch in batches]

    def _show(self, batch: Any) -> Shown:
        shown: Shown = []

        def watch(at: Site, call: AttentionCall, out: Tensor) -> None:
            if at in self.sites:
                shown.append((self.sites[at], call, out))

        with torch.no_grad(), softmax_again(self.model), watching(self.model, watch):
            as_run(batch)(self.model)
        return shown

    def backward(self, shown: Shown) -> list[float]:
        found = []
        for site, call, wanted in shown:
            out, rows = site.attend(call), rows_that_count(call)
            if rows is not None:
                out, wanted = (torch.where(rows[:, None, :, None], x, 0.0) for x in (out, wanted))
            found.append(relative(out, wanted))
        return _backward(torch.stack(found).sum())


@dataclass(frozen=True)
class _EndToEnd:
    """Shows a batch and what the teacher made of it."""

    plan: Plan
    rate: float
    model: nn.Module
    teacher: Callable[..., Any] | None
    compare: Loss

    def show(self, batches: list[Any]) -> list[tuple[Any, Any]]:
        with torch.no_grad():
            if self.teacher is not None:
                return [(batch, as_run(batch)(self.teacher)) for batch in batches]  # type: ignore[arg-type]
            with softmax_again(self.model):
                return [(batch, as_run(batch)(self.model)) for batch in batches]

    def backward(self, shown: tuple[Any, Any]) -> list[float]:
        batch, wanted = shown
        found = self.compare(as_run(batch)(self.model), wanted, batch)
        if not isinstance(found, Tensor) or found.numel() != 1 or not found.requires_grad:
            what = type(found).__name__
            if isinstance(found, Tensor):
                what = f"a tensor of shape {tuple(found.shape)}" + (
                    "" if found.requires_grad else " without a gradient"
                )
            raise ValueError(
                f"loss must return one number that depends on the model's output, with its gradient; got {what}"
            )
        return _backward(found)


def _backward(loss: Tensor) -> list[float]:
    loss.backward()  # type: ignore[no-untyped-call]
    return [float(loss.detach())]


def _sites(model: nn.Module) -> dict[Site, AnySite]:
    found = {
        Site(path, number): site
        for path, own in converted_sites(model).items()
        for number, site in enumerate(own)
        if site is not None
    }
    if not found:
        raise ValueError("distil trains what lln.convert added: convert the model first, lln.convert(model, batches)")
    return found


def _added(sites: dict[Site, AnySite]) -> dict[str, Tensor]:
    """What the conversion added, by its name in a checkpoint; inside `frozen`, nothing else learns."""
    found: dict[str, Tensor] = {
        f"{at.path}.{at.number}.{name}": x.requires_grad_(True)
        for at, site in sites.items()
        for name, x in site.named_parameters()
    }
    if not found:
        raise ValueError("this conversion has no weights of its own: there is nothing to distil")
    return found


def _hashes(model: nn.Module, batches: list[Any]) -> dict[str, str]:
    """A checkpoint goes on with the data, the model and the conversion that it began with, or not at all."""
    told = json.dumps(description(model), sort_keys=True)
    return {
        "data_hash": fingerprint(x for x in tree_leaves(batches) if isinstance(x, Tensor)),
        "weights_hash": weights_hash(model)[:12],
        "conversion_hash": hashlib.sha256(told.encode()).hexdigest()[:12],
    }


def _first_error(on_step: Callable[[str, int, float], None] | None) -> Callable[[str, int, list[float]], None]:
    return (lambda *_: None) if on_step is None else lambda stage, step, errors: on_step(stage, step, errors[0])


def _as_list(batches: Any) -> list[Any]:
    if callable(batches) and not isinstance(batches, (list, tuple)):
        raise TypeError("distil takes a list of batches; a function that runs the model serves for calibration only")
    refuse_one_batch(batches, "batches")
    given = list(batches)
    if not given:
        raise ValueError("batches is empty: give what to distil on")
    return given


__all__ = ["distil", "relative_error"]
