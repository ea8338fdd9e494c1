"""A small RoBERTa learns masked tokens: how concentrated attention is meanwhile, and whether the way of matching matters.

Three attentions are trained from the same start on the same windows: softmax, LLN matched by the table, and LLN matched on
a sample. At some steps of the softmax training every head's q and k are matched both ways and the entropies compared
(`matching_models`). At its end its attention is also swapped for both kinds of LLN, without further training.
"""

import math
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import RobertaForMaskedLM

from lln.hf.attention.call import Call
from lln.hf.conversion.watching import watching
from lln_lab.bench import matching_models
from lln_lab.bench.matching_attention import Matched
from lln_lab.experiments.masking import Masking, tokenizer_of, windows
from lln_lab.experiments.models.roberta import Size, configuration

SOFTMAX = "sdpa"
MATCHED = tuple(Matched(method) for method in matching_models.METHODS)


@dataclass(frozen=True)
class Plan:
    steps: int = 150
    looks: tuple[int, ...] = (0, 50)  # and after the last step
    batch: int = 8
    length: int = 256
    vocabulary: int = 4096
    learning_rate: float = 1e-3
    tested: int = 64  # windows
    watched: int = 4  # windows whose heads are looked at
    seed: int = 0


def run(texts: list[str], plan: Plan, tell: Callable[[str], None] = lambda _: None) -> dict[str, Any]:
    matched = [way.register() for way in MATCHED]
    with tempfile.TemporaryDirectory() as folder:
        tokenizer = tokenizer_of(texts, Path(folder) / "tokenizer", plan.vocabulary)
    rows, masking = windows(texts, tokenizer, plan.length), Masking(tokenizer)
    train, test = rows[plan.tested :], rows[: plan.tested]
    looks: list[dict[str, Any]] = []
    losses: dict[str, Any] = {}
    for name in (SOFTMAX, *matched):
        model = _model(plan, masking.vocabulary)
        model.set_attn_implementation(name)
        for step, batch in enumerate(_batches(train, masking, plan)):
            if name == SOFTMAX and step in plan.looks:
                looks.append({"step": step, **_look(model, test[: plan.watched])})
            if step == 0:
                optimizer = torch.optim.AdamW(model.parameters(), lr=plan.learning_rate, weight_decay=0.01)
                schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, plan.learning_rate, plan.steps + 1)
            tell(f"{name}, step {step} of {plan.steps}")
            loss = model(**batch).loss
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
        losses[name] = {"trained": _test_loss(model, test, masking, plan)}
        if name == SOFTMAX:
            looks.append({"step": plan.steps, **_look(model, test[: plan.watched])})
            for swapped in matched:
                model.set_attn_implementation(swapped)
                losses.setdefault("swapped", {})[swapped] = _test_loss(model, test, masking, plan)
    return {"plan": asdict(plan), "bits_per_masked_token": losses, "looks": looks}


def _model(plan: Plan, vocabulary: int) -> RobertaForMaskedLM:
    torch.manual_seed(plan.seed)
    return RobertaForMaskedLM(configuration(Size(length=plan.length, dropout=0.0), vocabulary)).train()


def _batches(rows: Tensor, masking: Masking, plan: Plan) -> Iterator[dict[str, Tensor]]:
    """The same for every attention."""
    generator = torch.Generator().manual_seed(plan.seed)
    for _ in range(plan.steps):
        chosen = torch.randint(len(rows), (plan.batch,), generator=generator)
        yield _masked(rows[chosen], masking, generator)


def _masked(rows: Tensor, masking: Masking, generator: torch.Generator) -> dict[str, Tensor]:
    samples = [masking(row, generator) for row in rows]
    return {name: torch.stack([sample[name] for sample in samples]) for name in samples[0]}


@torch.no_grad()
def _test_loss(model: RobertaForMaskedLM, rows: Tensor, masking: Masking, plan: Plan) -> float:
    """Bits per masked token, the same masks for every attention."""
    generator = torch.Generator().manual_seed(10_000)
    losses = [float(model(**_masked(some, masking, generator)).loss) for some in rows.split(plan.batch)]
    return sum(losses) / len(losses) / math.log(2)


@torch.no_grad()
def _look(model: RobertaForMaskedLM, rows: Tensor) -> dict[str, Any]:
    """Entropies of every head on windows without masks."""
    found: list[dict[str, Any]] = []
    with watching(model, partial(_look_at, found, model.config.num_hidden_layers)):
        for row in rows:
            model(input_ids=row[None])
    return {"heads": matching_models.per_head(found), "summary": matching_models.summary(found)}


def _look_at(found: list[dict[str, Any]], layers: int, call: Call, _: Tensor) -> None:
    entropies = matching_models.heads(call.q, call.k, call.scale, False)
    text, layer = divmod(len(found) // len(entropies), layers)
    for head, one in enumerate(entropies):
        found.append({"text": text, "layer": layer, "head": head, "tokens": call.k.shape[2], **one})


def shortened(plan: Plan, steps: int) -> Plan:
    """The plan with so many steps, looked at in the beginning, after a third, and at the end."""
    return replace(plan, steps=steps, looks=(0, steps // 3))
