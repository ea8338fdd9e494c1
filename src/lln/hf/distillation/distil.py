"""Distillation: a converted model is trained to follow the softmax model it came from.

    1. layer by layer  each attention on the teacher's own activations, towards the teacher's attention output
    2. end to end      the whole model, towards the teacher's hidden states or logits

By default only what `convert` attached learns: alpha, beta, the feature bias, the mixing or weights and maps of q and k. The
teacher is the model itself with softmax in place of LLN, unless another is given, so no second copy is needed.
"""

import copy
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lln.conversion.checkpoint import fingerprint
from lln.conversion.everything import (
    EVERYTHING,
    LAYER_RATE,
    RATE,
    all_weights,
    put_back_on_error,
    refuse_what_does_not_go_with_it,
)
from lln.conversion.modes import evaluating, frozen
from lln.conversion.plan import END_TO_END, LAYERS, check_numbers, split
from lln.conversion.training import Training
from lln.hf.conversion.batches import batches_of
from lln.hf.distillation.low_rank import low_rank_updates
from lln.hf.distillation.maps import KINDS, converted_modules, fold, make_room, put_back
from lln.hf.distillation.progress import progress_bar
from lln.hf.distillation.teacher import Teacher
from lln.hf.distillation.train import PRECISIONS, stages_of
from lln.hf.modules import Model, attention_modules
from lln.hf.options import ATTENTIONS, NEAR_FAR, LLNOptions

LEARNABLE = ("alpha", "beta", "feature_bias", "mix", "weights", "maps")


def distil(
    model: Model,
    data: Any,
    *,
    tokenizer: Any = None,
    teacher: Any = None,
    steps: int = 300,
    lr: float = LAYER_RATE,
    stage: str = "both",
    learn: Iterable[str] = LEARNABLE,
    maps: str | None = "auto",
    low_rank: int | None = None,
    precision: str = "float32",
    end_to_end_steps: int | None = None,
    end_to_end_lr: float | None = None,
    max_length: int = 512,
    batch_size: int = 4,
    group: int = 12,
    passes: int = 4,
    checkpoint: str | Path | None = None,
    checkpoint_every: int = 25,
    resume: bool = True,
    progress: bool = True,
    on_step: Callable[[str, int, list[float]], None] | None = None,
    seed: int = 0,
) -> Model:
    """Train a model that `lln.hf.convert` converted to follow its softmax original, in place; returns the model.

    data: texts (with `tokenizer`), or batches, as `convert` takes them. More is better: 4 texts a step, `passes` times.
    teacher: the softmax model to follow; None: this model with softmax attention, as its weights are now. Give the original
        if `low_rank` changed them in an earlier call.
    steps: in all; with stage='both', `end_to_end_steps` of them end to end, two thirds unless given.
    lr: of Adam, for the layers; end_to_end_lr: a quarter of it by default. Both rise briefly and fall to zero as a cosine.
    stage: 'layers', 'end_to_end' or 'both'.
    learn: what learns, out of alpha, beta, feature_bias, mix (LLN+Diag), weights (near-far) and maps; beside `low_rank` it
        may be nothing. 'everything', alone, trains all weights of the model, end to end, with end_to_end_lr=3e-4 by default,
        after a copy of the model, which teaches; `unload` then gives softmax with the changed weights.
    maps: 'free' maps cost a product for q and for k; 'folded' ones are written into the projections at the end and cost
        nothing (where the projections allow it: docs/distil.md); None leaves maps out. 'auto' is 'folded' for near-far
        attention, which takes no free ones, and else 'free'.
    low_rank: also learn updates of this rank of the attention's own projections, end to end, and add them to the weights
        (needs peft). `unload` then gives softmax with the changed weights.
    precision: 'bfloat16' runs the model under autocast end to end, which is faster where the processor has such products; the
        teacher, the layers and what learns stay as they are.
    group, passes: what the teacher does on `group` batches is kept in memory and gone through `passes` times, end to end
        half as often.
    checkpoint: a folder; with resume=True a run that was interrupted goes on from there and ends as it would have. The
        model itself is as it was before a run that was interrupted.
    on_step: called with the stage, the step's number and its errors (one for each layer, or one).
    """
    whole = {
        "steps": steps,
        "group": group,
        "passes": passes,
        "checkpoint_every": checkpoint_every,
        "low_rank": low_rank,
    }
    learn = (learn,) if isinstance(learn, str) else tuple(learn)
    everything = learn == (EVERYTHING,)
    if everything:
        refuse_what_does_not_go_with_it(model, teacher, stage, lr)
        if maps not in ("auto", None):
            raise ValueError(f"maps are for projections that do not learn: leave maps={maps!r} out of {EVERYTHING!r}")
        maps = None
    if maps == "auto":
        maps = "folded" if model.config._attn_implementation == NEAR_FAR else "free"
    if precision not in PRECISIONS:
        raise ValueError(f"precision must be one of {', '.join(map(repr, PRECISIONS))}, got {precision!r}")
    learn = _check(model, whole, {"lr": lr, "end_to_end_lr": end_to_end_lr}, stage, learn, maps)
    stages = split(steps, stage, end_to_end_steps)
    batches = batches_of(data, model, tokenizer, max_length, batch_size)
    kept = maps if "maps" in learn else None
    weights = fingerprint(x for m in converted_modules(model) for n, x in m.named_parameters() if "lln." not in n)
    unlearned = {module: module.lln for module in converted_modules(model)}
    usual = RATE if everything else lr / 4
    rates = {LAYERS: lr, END_TO_END: usual if end_to_end_lr is None else end_to_end_lr}
    settings = {
        "stages": stages, "rates": list(rates.values()), "learn": list(learn), "maps": kept, "group": group,
        "passes": passes, "seed": seed, "low_rank": low_rank, "precision": precision,
        "data_hash": fingerprint(x for batch in batches for _, x in sorted(batch.items())), "weights_hash": weights,
    }  # fmt: skip
    folder = None if checkpoint is None else Path(checkpoint)
    if teacher is None:
        teacher = copy.deepcopy(model) if everything else model
    make_room(model, kept, per_feature=True)
    try:  # from here on the model is put back as it was, whatever goes wrong
        with (
            frozen(model),
            low_rank_updates(model, low_rank, seed) as updates,
            evaluating(model, teacher),
            put_back_on_error(dict(model.named_parameters())) if everything else nullcontext(),
        ):
            parameters = all_weights(model) if everything else _let_learn(model, learn, kept)
            parameters |= {} if updates is None else updates.parameters
            teaches = Teacher(teacher, updates)
            found = stages_of(model, teaches, len(batches), stages, rates, settings)
            training = Training(
                batches, parameters, settings, folder, checkpoint_every, lambda: _keep_mixing_inside(parameters)
            )
            with torch.enable_grad(), progress_bar(progress, steps) as show:
                training.run(found, resume, _both(show, on_step))
    except BaseException:
        put_back(model, unlearned)
        raise
    if kept == "folded":
        fold(model)
    return model


def _check(
    model: Any, whole: dict[str, Any], rates: dict[str, Any], stage: str, learn: Iterable[str], maps: str | None
) -> tuple[str, ...]:
    if not converted_modules(model):
        raise ValueError(
            "distil trains what lln.hf.convert measured and attached: convert the model first, "
            "lln.hf.convert(model, calibrate=texts)"
        )
    if model.config._attn_implementation not in ATTENTIONS:
        raise ValueError(
            f"the model is converted, but runs with attn_implementation={model.config._attn_implementation!r}: "
            f"set_attn_implementation({LLNOptions.from_dict(model.config.lln).attention!r}) first"
        )
    check_numbers({name: x for name, x in whole.items() if name != "low_rank" or x is not None}, rates)
    if whole["low_rank"] is not None and stage == "layers":
        raise ValueError("low_rank is learned end to end, and stage='layers' has no such steps")
    if maps not in KINDS:
        raise ValueError(f"maps must be 'auto', 'free', 'folded' or None, got {maps!r}")
    if maps == "free" and model.config._attn_implementation == NEAR_FAR:
        raise ValueError("near-far attention sees one q and k in all its parts: its maps are 'folded', or None")
    chosen = (learn,) if isinstance(learn, str) else tuple(learn)
    if chosen == (EVERYTHING,):
        if whole["low_rank"] is not None:
            raise ValueError(f"low_rank updates are for projections that do not learn: leave it out of {EVERYTHING!r}")
        return chosen
    unknown = [name for name in chosen if name not in LEARNABLE]
    if unknown or not (chosen or whole["low_rank"]):
        raise ValueError(f"learn must be {EVERYTHING!r} or name some of {', '.join(LEARNABLE)}; got {list(chosen)!r}")
    if not chosen and stage != "end_to_end":
        raise ValueError(
            f"low_rank alone has nothing to learn layer by layer: stage must be 'end_to_end', got {stage!r}"
        )
    if maps is None and chosen == ("maps",):
        raise ValueError("learn names maps alone, and maps=None leaves them out: nothing would learn")
    return chosen


def _let_learn(model: Any, learn: tuple[str, ...], maps: str | None) -> dict[str, Tensor]:
    """The parameters that learn, by name; of folded maps the key's alone, since the query's follows from it."""
    names = {name for name in learn if name != "maps"}
    if maps is not None:
        names |= {"key_map"} if maps == "folded" else {"key_map", "query_map"}
    found = {}
    for number, module in enumerate(attention_modules(model)):
        own = getattr(module, "lln", None)
        for name, parameter in () if own is None else own.named_parameters():
            if name in names:
                found[f"{number}.{name}"] = parameter.requires_grad_(True)
    return found


@torch.no_grad()
def _keep_mixing_inside(parameters: dict[str, Tensor]) -> None:
    for name, x in parameters.items():
        if name.endswith(".mix"):
            x.clamp_(0.0, 1.0)


def _both(
    show: Callable[[str, int, list[float]], None], told: Callable[[str, int, list[float]], None] | None
) -> Callable[[str, int, list[float]], None]:
    def on_step(stage: str, step: int, errors: list[float]) -> None:
        show(stage, step, errors)
        if told is not None:
            told(stage, step, errors)

    return on_step
