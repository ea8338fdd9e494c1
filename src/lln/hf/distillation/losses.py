"""What a distilled model is to be close to: the attention outputs of the softmax model, then its final outputs.

    layers      sum over layers of |o - t|^2 / |t|^2, o and t the attention outputs of student and teacher on the teacher's
                own activations. No gradient goes through the model.
    end to end  |h - t|^2 / |t - mean t|^2 of the last hidden states, the same of their mean over each text's tokens (its
                embedding), and the squared error of the cosines between embeddings over the variance of the teacher's;
                for models with logits, the Kullback-Leibler divergence of the next token's distribution in nats.

Errors are relative, so that layers of different scale count alike. Padding does not count. The loss end to end is another than
that of `lln.conversion.distil`, because these models say which tokens count and what their outputs are.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lln.conversion.asked import rows_that_count
from lln.conversion.errors import relative
from lln.hf.attention.call import Call
from lln.hf.attention.functions import attend
from lln.hf.conversion.batches import without_labels
from lln.hf.conversion.watching import watching

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
        teacher.base_model(**without_labels(batch))  # a head over the vocabulary would cost and say nothing here
    return captured


def backward_of_layers(captured: list[Captured], attention: str) -> list[float]:
    """The error of each layer, in order; gradients are added up. Memory is that of one layer's graph."""
    errors = []
    for call, target in captured:
        loss = relative_error(attend(call, attention)[0], target, rows_that_count(call))
        loss.backward()  # type: ignore[no-untyped-call]
        errors.append(float(loss.detach()))
    return errors


class Others(NamedTuple):
    """The teacher's embeddings of other texts, which each text of a batch is compared with: far more pairs than a batch has."""

    directions: Tensor  # (texts, width), of length 1
    variance: Tensor  # of the cosines of all pairs of them


def others_of(outputs: list[Any], batches: list[Batch]) -> Others | None:
    """From the teacher's outputs for some batches; None without hidden states, or with too few texts for cosines to vary."""
    if any("last_hidden_state" not in out for out in outputs):
        return None
    means = [pooled(out.last_hidden_state, _rows_of(b)) for out, b in zip(outputs, batches, strict=True)]
    directions = F.normalize(torch.cat(means), dim=-1)
    if len(directions) < 3:
        return None
    rows, columns = torch.triu_indices(len(directions), len(directions), 1)
    return Others(directions, (directions @ directions.mT)[rows, columns].var())


def end_to_end_loss(student: Callable[..., Any], wanted: Any, batch: Batch, others: Others | None = None) -> Tensor:
    """The student's distance from `wanted`, the teacher's output for the same batch."""
    given = student(**without_labels(batch))
    rows = _rows_of(batch)
    if "logits" in wanted:
        return _of_logits(given.logits, wanted.logits, rows)
    if "last_hidden_state" not in wanted:
        raise ValueError(
            f"end to end a model is compared by its logits or last hidden states; {type(wanted).__name__} has neither: "
            "use stage='layers', or distil the model without its head"
        )
    h, t = given.last_hidden_state, wanted.last_hidden_state
    loss = _centred_error(h, t, rows) + _centred_error(pooled(h, rows)[:, None], pooled(t, rows)[:, None], None)
    return loss if others is None else loss + pair_error(pooled(h, rows), pooled(t, rows), others)


def pair_error(given: Tensor, target: Tensor, others: Others) -> Tensor:
    """Of the cosines of embeddings (B, width) to those of the other texts, over the variance of such cosines."""
    moved = (F.normalize(given, dim=-1) - F.normalize(target, dim=-1)) @ others.directions.mT  # (B, texts)
    return moved.square().mean() / others.variance.clamp_min(1e-12)


def relative_error(given: Tensor, target: Tensor, rows: Tensor | None) -> Tensor:
    """Squared error over the target's power; given and target (B, N, ...), rows (B, N) True where they count."""
    if rows is not None:
        given, target = given[rows], target[rows]
    return relative(given, target)


def token_divergence(given: Tensor, wanted: Tensor, rows: Tensor | None) -> Tensor:
    """KL(teacher | student) of each token's prediction, averaged over the tokens that count; logits (B, N, vocabulary)."""
    if rows is not None:
        given, wanted = given[rows], wanted[rows]
    given, wanted = given.flatten(0, -2), wanted.flatten(0, -2)
    return F.kl_div(
        given.float().log_softmax(-1), wanted.float().log_softmax(-1), log_target=True, reduction="batchmean"
    )


def _of_logits(given: Tensor, wanted: Tensor, rows: Tensor | None) -> Tensor:
    """Of each token (B, N, classes), or of the whole input (B, classes); a single number is no distribution."""
    if wanted.shape[-1] == 1:
        return relative_error(given, wanted, None)
    return token_divergence(given, wanted, rows if wanted.dim() == 3 else None)


def pooled(hidden: Tensor, rows: Tensor | None) -> Tensor:
    """(B, width): the mean over the tokens that count."""
    if rows is None:
        return hidden.mean(1)
    counts = rows[..., None].to(hidden.dtype)
    return (hidden * counts).sum(1) / counts.sum(1).clamp_min(1)


def _rows_of(batch: Batch) -> Tensor | None:
    mask = batch.get("attention_mask")
    return None if mask is None else mask.bool()


def _centred_error(given: Tensor, target: Tensor, rows: Tensor | None) -> Tensor:
    """Squared error over the target's variance about its mean over tokens: what all of them share counts for nothing."""
    if rows is None:
        rows = torch.ones(target.shape[:2], dtype=torch.bool, device=target.device)
    given, target = given[rows], target[rows]  # (tokens, width)
    spread = (target - target.mean(0)).square().sum() if len(target) > 1 else target.square().sum()
    return (given - target).square().sum() / spread.clamp_min(1e-12)
