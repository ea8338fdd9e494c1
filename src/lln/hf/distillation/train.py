"""The stages of a distillation of a Hugging Face model, as `lln.conversion.training` takes them."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from lln.conversion.plan import END_TO_END, LAYERS, Plan
from lln.conversion.training import Stage
from lln.hf.distillation.losses import Batch, Captured, backward_of_layers, end_to_end_loss
from lln.hf.distillation.teacher import Shown, Teacher
from lln.hf.modules import attention_modules

PRECISIONS = ("float32", "bfloat16")


@dataclass(frozen=True)
class LayerStage:
    """Each attention towards the teacher's, on the teacher's own activations."""

    plan: Plan
    rate: float
    teacher: Teacher
    pairs: dict[nn.Module, nn.Module]
    attention: str

    def show(self, batches: list[Batch]) -> list[list[Captured]]:
        return [self.teacher.layers(self.pairs, batch) for batch in batches]

    def backward(self, shown: list[Captured]) -> list[float]:
        return backward_of_layers(shown, self.attention)


@dataclass(frozen=True)
class EndToEndStage:
    """The whole model towards the teacher's hidden states or logits."""

    plan: Plan
    rate: float
    teacher: Teacher
    model: Any
    precision: str

    def show(self, batches: list[Batch]) -> list[Shown]:
        return self.teacher.outputs(batches)

    def backward(self, shown: Shown) -> list[float]:
        wanted = self.teacher.wanted(shown)
        with torch.autocast(self.model.device.type, torch.bfloat16, enabled=self.precision == "bfloat16"):
            loss = end_to_end_loss(self.model, wanted, shown.batch, shown.others)
        loss.backward()  # type: ignore[no-untyped-call]
        return [float(loss.detach())]


def stages_of(
    model: Any, teacher: Teacher, batches: int, steps: dict[str, int], rates: dict[str, float], settings: dict[str, Any]
) -> dict[str, Stage]:
    """End to end a step takes longer than the teacher's pass, so batches are gone through half as often."""
    pairs = pairs_of(model, teacher.model)
    found: dict[str, Stage] = {}
    for name, count in steps.items():
        passes = settings["passes"] if name == LAYERS else max(1, settings["passes"] // 2)
        plan = Plan(count, batches, settings["group"], passes, settings["seed"])
        if name == END_TO_END:
            found[name] = EndToEndStage(plan, rates[name], teacher, model, settings["precision"])
        else:
            found[name] = LayerStage(plan, rates[name], teacher, pairs, model.config._attn_implementation)
    return found


def pairs_of(model: Any, teacher: Any) -> dict[nn.Module, nn.Module]:
    """The student's attention module for each of the teacher's, of those that are converted."""
    own, followed = attention_modules(model), attention_modules(teacher)
    if len(own) != len(followed):
        raise ValueError(
            f"the teacher has {len(followed)} attention modules and the model {len(own)}: layers cannot be paired"
        )
    for t, m in zip(followed, own, strict=True):
        if _sizes(t) != _sizes(m):
            raise ValueError(
                f"an attention of the teacher has projections of {_sizes(t)} and the model's of {_sizes(m)}: the teacher must "
                "have the model's heads and width"
            )
    return {t: m for t, m in zip(followed, own, strict=True) if getattr(m, "lln", None) is not None}


def _sizes(module: Any) -> list[tuple[int, ...]]:
    """Of the projections and, where the module says so, of the heads."""
    heads = [
        (h,) for n in ("num_heads", "num_attention_heads", "head_dim") if (h := getattr(module, n, None)) is not None
    ]
    return [
        tuple(x.shape) for name, x in module.named_parameters() if "lln." not in name and "lora_" not in name
    ] + heads
