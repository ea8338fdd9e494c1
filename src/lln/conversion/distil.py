"""Distillation of any converted torch model: what the conversion added is trained until the model follows its softmax original.

    1. layer by layer  each attention on the teacher's own queries, keys and values, towards the teacher's output:
                       sum over attentions of |o - t|^2 / |t|^2
    2. end to end      the whole model, towards the teacher's outputs: |o - t|^2 / |t|^2, or a loss of the caller's

The teacher is the model itself with softmax in place of its linear attention, unless another is given.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from lln.conversion.call import AttentionCall
from lln.conversion.convert import _as_run, _as_runs, converted_sites, softmax_again
from lln.conversion.linear_site import AnySite
from lln.conversion.plan import END_TO_END, LAYERS, STAGES, Plan, split
from lln.conversion.sites import Site, watching

Loss = Callable[[Any, Any, Any], Tensor]  # (the model's output, the teacher's, the batch)
Shown = list[tuple[AnySite, AttentionCall, Tensor]]
BETAS = (0.9, 0.99)


def distil(
    model: nn.Module,
    batches: Any,
    *,
    steps: int = 300,
    lr: float = 2e-2,
    stage: str = "both",
    end_to_end_steps: int | None = None,
    end_to_end_lr: float | None = None,
    teacher: Callable[..., Any] | None = None,
    loss: Loss | None = None,
    group: int = 12,
    passes: int = 4,
    on_step: Callable[[str, int, float], None] | None = None,
    seed: int = 0,
) -> nn.Module:
    """Train what `lln.convert` added to a model, in place; the model's own weights do not change. Returns the model.

    batches: as `convert` takes them, in a list. More is better: one a step, `passes` times.
    steps: in all; with stage='both', `end_to_end_steps` of them end to end, two thirds unless given.
    lr: of Adam, for the layers; end_to_end_lr: a quarter of it by default. Both rise briefly and fall to zero as a cosine.
    teacher: called as the model is, end to end; None: this model with softmax. Layers follow this model with softmax anyway.
    loss: of the model's output, the teacher's output and the batch; None: the squared error over the teacher's power, of
        all floating-point tensors in the output.
    group: batches whose teacher's activations are in memory at once.
    on_step: called with the stage, the step's number and its loss.
    """
    sites = _sites(model)
    if stage not in STAGES:
        raise ValueError(f"stage must be one of {', '.join(map(repr, STAGES))}, got {stage!r}")
    stages, given = split(steps, stage, end_to_end_steps), _as_list(batches)
    rates = {LAYERS: lr, END_TO_END: lr / 4 if end_to_end_lr is None else end_to_end_lr}
    learning = [x for site in sites.values() for x in site.parameters()]
    if not learning:
        raise ValueError("this conversion has no weights of its own: there is nothing to distil")
    before = [(x, x.requires_grad) for x in model.parameters()]
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        for x, _ in before:
            x.requires_grad_(False)
        for x in learning:
            x.requires_grad_(True)
        with torch.enable_grad():
            for name, count in stages.items():
                teach = _Layers(model, sites) if name == LAYERS else _EndToEnd(model, teacher, loss or relative_error)
                _train(teach, given, learning, Plan(count, len(given), group, passes, seed), rates[name], name, on_step)
    finally:
        for x, wanted in before:
            x.requires_grad_(wanted)
        for x in learning:
            x.grad = None
        for module, training in modes.items():
            module.training = training
    return model


def relative_error(given: Any, wanted: Any, batch: Any = None) -> Tensor:
    """|o - t|^2 / |t|^2, summed over the floating-point tensors of an output: a tensor, or a tuple, list or mapping of them."""
    pairs = list(zip(_tensors(given), _tensors(wanted), strict=True))
    if not pairs:
        raise ValueError(
            f"the model returns no floating-point tensor to compare, but {type(wanted).__name__}: give a loss of your own, "
            "loss(output, teacher's output, batch)"
        )
    return torch.stack([_relative(o, t) for o, t in pairs]).sum()


def _relative(given: Tensor, wanted: Tensor) -> Tensor:
    return (given - wanted).square().sum() / wanted.square().sum().clamp_min(1e-12)


class _Layers:
    """Shows what each site was asked and what softmax answered."""

    def __init__(self, model: nn.Module, sites: dict[Site, AnySite]) -> None:
        self.model, self.sites = model, sites

    def show(self, batch: Any) -> Shown:
        shown: Shown = []

        def watch(at: Site, call: AttentionCall, out: Tensor) -> None:
            if at in self.sites:
                shown.append((self.sites[at], call, out.reshape(*call.q.shape[:3], -1)))

        with torch.no_grad(), softmax_again(self.model), watching(self.model, watch):
            _as_run(batch)(self.model)
        return shown

    def loss(self, shown: Shown) -> Tensor:
        found = []
        for site, call, wanted in shown:
            out = site.attend(call)
            if call.key_mask is not None and not call.cross:  # rows of padding are nobody's output
                rows = call.key_mask[:, None, :, None]
                out, wanted = torch.where(rows, out, 0.0), torch.where(rows, wanted, 0.0)
            found.append(_relative(out, wanted))
        return torch.stack(found).sum()


class _EndToEnd:
    """Shows a batch and what the teacher made of it."""

    def __init__(self, model: nn.Module, teacher: Callable[..., Any] | None, loss: Loss) -> None:
        self.model, self.teacher, self.compare = model, teacher, loss

    def show(self, batch: Any) -> tuple[Any, Any]:
        with torch.no_grad():
            if self.teacher is not None:
                return batch, _as_run(batch)(self.teacher)  # type: ignore[arg-type]
            with softmax_again(self.model):
                return batch, _as_run(batch)(self.model)

    def loss(self, shown: tuple[Any, Any]) -> Tensor:
        batch, wanted = shown
        return self.compare(_as_run(batch)(self.model), wanted, batch)


def _train(
    teach: _Layers | _EndToEnd,
    batches: list[Any],
    learning: list[nn.Parameter],
    plan: Plan,
    rate: float,
    stage: str,
    on_step: Callable[[str, int, float], None] | None,
) -> None:
    optimizer = torch.optim.Adam(learning, betas=BETAS)
    kept: tuple[int, list[Any]] = (-1, [])
    for step in range(plan.steps):
        number = plan.group_of(step)
        if kept[0] != number:
            kept = (number, [teach.show(batches[i]) for i in plan.members(number)])
        for options in optimizer.param_groups:
            options["lr"] = rate * plan.factor(step)
        optimizer.zero_grad()
        loss = teach.loss(kept[1][plan.member(step)])
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        if on_step is not None:
            on_step(stage, step, float(loss.detach()))


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


def _as_list(batches: Any) -> list[Any]:
    if callable(batches) and not isinstance(batches, (list, tuple)):
        raise TypeError("distil takes a list of batches; a function that runs the model serves for calibration only")
    given = list(batches)
    _as_runs(given)  # refuses what convert refuses
    return given


def _tensors(output: Any) -> list[Tensor]:
    return [x for x in torch.utils._pytree.tree_leaves(output) if isinstance(x, Tensor) and x.is_floating_point()]


__all__ = ["distil", "relative_error"]
