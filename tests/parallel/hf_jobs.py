"""Models of Hugging Face on a stretch of their tokens."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import lln.parallel


def loss_of(model: Any, labels: Tensor, total: int, **inputs: Tensor) -> Tensor:
    """The part of these labels in the mean over `total` of them."""
    out = model(**inputs, use_cache=False)  # near-far attention has no states over several processes
    logits = out.logits if "logits" in out else out.last_hidden_state
    return F.cross_entropy(logits.flatten(0, 1).double(), labels.flatten(), reduction="sum") / total


def gradients(model: Any) -> dict[str, Tensor]:
    return {n: torch.zeros_like(p) if p.grad is None else p.grad.clone() for n, p in model.named_parameters()}


def hugging_face(group: Any, payload: dict[str, Any]) -> dict[str, Any]:
    """The part of the loss, and summed gradients; inputs are cut here, as a training loop does."""
    from tests.hf.models import make

    family, attention, options = payload["model"]
    model = make(family, attention, **options).double()
    with lln.parallel.context_parallel(group):
        cut = {n: lln.parallel.shard(t, 1, multiple_of=payload["multiple_of"]) for n, t in payload["inputs"].items()}
        labels = cut.pop("labels")
        loss = loss_of(model, labels, payload["total"], **cut)
        loss.backward()
    lln.parallel.sum_gradients(model.parameters(), group)
    return {"loss": loss.detach(), "gradients": gradients(model)}


def trained(group: Any, payload: dict[str, Any]) -> dict[str, Any]:
    """By the Trainer that `code` defines, over all processes: what it logged, and the weights at the end."""
    import os

    import torch.distributed as dist
    from transformers import TrainingArguments

    from tests.hf.models import make

    os.environ.update(LOCAL_RANK=str(dist.get_rank()), ACCELERATE_USE_CPU="true")
    names: dict[str, Any] = {}
    exec(payload["code"], names)
    arguments = TrainingArguments(
        payload["folder"], max_steps=payload["steps"], per_device_train_batch_size=1, learning_rate=payload["rate"],
        optim="sgd", lr_scheduler_type="constant", max_grad_norm=0.0, logging_steps=1, save_strategy="no", report_to=[],
        use_cpu=True, disable_tqdm=True, ddp_find_unused_parameters=False,
    )  # fmt: skip
    model = make("llama").double()
    trainer = names["StretchTrainer"](
        model=model, args=arguments, train_dataset=[{"input_ids": payload["ids"], "labels": payload["ids"]}]
    )
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    return {"losses": losses, "weights": {n: w.clone() for n, w in model.state_dict().items()}}
