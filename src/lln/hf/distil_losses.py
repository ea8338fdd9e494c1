"""What a distilled model is to be close to: the attention outputs of the softmax model, then its final outputs.

    layers      sum over layers of |o - t|^2 / |t|^2, o and t the attention outputs of student and teacher on the teacher's
                own activations. No gradient goes through the model.
    end to end  |h - t|^2 / |t - mean t|^2 of the last hidden states, and the same of their mean over each text's tokens;
                for models with logits, the Kullback-Leibler divergence of the next token's distribution in nats.

Errors are relative, so that layers of different scale count alike. Padding does not count.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lln.hf.attention import attend
from lln.hf.call import Call
from lln.hf.capture import watching

Batch = dict[str, Tensor]
Captured = tuple[Call, Tensor]  # a call of attention, its module the student's, and the teacher's output (B, N, Hq, Dv)


def capture_layers(teacher: Any, pairs: dict[nn.Module, nn.Module], batch: Batch) -> list[Captured]:
    """One forward pass of the teacher: what each of its attention modules was given and gave.

    pairs: the student's attention module for each of the teacher's; others are passed over.
    """
    captured: list[Captured] = []

    def watch(call: Call, target: Tensor) -> None:
        if call.module in pairs:
            own = replace(call, module=pairs[call.module], dropout=0.0, layer=None, weights_wanted=False)
            captured.append((own, target))

    with watching(teacher, watch), torch.no_grad():
        teacher(**without_labels(batch))
    return captured


def backward_of_layers(captured: list[Captured], blocks: bool) -> list[float]:
    """The error of each layer, in order; gradients are added up. Memory is that of one layer's graph."""
    errors = []
    for call, target in captured:
        loss = relative_error(attend(call, blocks)[0], target, rows_that_count(call))
        loss.backward()  # type: ignore[no-untyped-call]
        errors.append(float(loss.detach()))
    return errors


def end_to_end_loss(student: Callable[..., Any], wanted: Any, batch: Batch) -> Tensor:
    """The student's distance from `wanted`, the teacher's output for the same batch."""
    given = student(**without_labels(batch))
    mask = batch.get("attention_mask")
    if "logits" in wanted and wanted.logits.dim() == 3:
        return token_divergence(given.logits, wanted.logits, mask)
    rows = None if mask is None else mask.bool()
    h, t = given.last_hidden_state, wanted.last_hidden_state
    return _centred_error(h, t, rows) + _centred_error(pooled(h, rows)[:, None], pooled(t, rows)[:, None], None)


def relative_error(given: Tensor, target: Tensor, rows: Tensor | None) -> Tensor:
    """Squared error over the target's power; given and target (B, N, ...), rows (B, N) True where they count."""
    if rows is not None:
        given, target = given[rows], target[rows]
    return (given - target).square().sum() / target.square().sum().clamp_min(1e-12)


def token_divergence(given: Tensor, wanted: Tensor, mask: Tensor | None) -> Tensor:
    """KL(teacher | student) of each token's prediction, averaged over the tokens that count; logits (B, N, vocabulary)."""
    if mask is not None:
        given, wanted = given[mask.bool()], wanted[mask.bool()]
    given, wanted = given.flatten(0, -2), wanted.flatten(0, -2)
    return F.kl_div(
        given.float().log_softmax(-1), wanted.float().log_softmax(-1), log_target=True, reduction="batchmean"
    )


def pooled(hidden: Tensor, rows: Tensor | None) -> Tensor:
    """(B, width): the mean over the tokens that count."""
    if rows is None:
        return hidden.mean(1)
    counts = rows[..., None].to(hidden.dtype)
    return (hidden * counts).sum(1) / counts.sum(1).clamp_min(1)


def rows_that_count(call: Call) -> Tensor | None:
    """Queries of padding do not count; they are the keys' tokens unless the attention is across sequences."""
    return None if call.cross or call.q.shape[2] != call.k.shape[2] else call.key_mask


def without_labels(batch: Batch) -> Batch:
    return {name: x for name, x in batch.items() if name != "labels"}


def _centred_error(given: Tensor, target: Tensor, rows: Tensor | None) -> Tensor:
    """Squared error over the target's variance about its mean over tokens: what all of them share counts for nothing."""
    if rows is None:
        rows = torch.ones(target.shape[:2], dtype=torch.bool, device=target.device)
    given, target = given[rows], target[rows]  # (tokens, width)
    spread = (target - target.mean(0)).square().sum() if len(target) > 1 else target.square().sum()
    return (given - target).square().sum() / spread.clamp_min(1e-12)
