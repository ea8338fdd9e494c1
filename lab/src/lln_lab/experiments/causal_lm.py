"""Open question: a causal language model from scratch, with any attention that has a causal form.

The paper trains encoders only. Here a small decoder predicts every token of a text from those before it: the corpus, windows,
sizes and budget of Figure 8, norms before the residuals, the embedding as the output layer. LLN takes alpha and beta from fixed
statistics, since those of a sequence would look into its future.
"""

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor

from lln.zoo import registry
from lln_lab.experiments import curves, fig8
from lln_lab.experiments.check import FEW_TOKENS, Planned, tokens
from lln_lab.experiments.contestants import Contestant, each_once, lineup
from lln_lab.experiments.grid import Job, Watcher, by_label, mean_and_spread, run_all
from lln_lab.experiments.models.roberta import CausalLanguageModel
from lln_lab.experiments.pairs import ahead_of_linear, on_a_par
from lln_lab.experiments.training import Run, train
from lln_lab.experiments.training.watch import OnStep
from lln_lab.experiments.verdict import Verdict

TASK = "causal_lm"
PRESETS = fig8.PRESETS
CONTESTANTS = ("softmax", "lln", "lln_diag", "near_far")


def next_token(window: Tensor, generator: torch.Generator) -> dict[str, Any]:
    """Every token is asked for; nothing is drawn."""
    return {"input_ids": window, "labels": window}


def run(
    settings: fig8.Settings,
    folder: Path,
    *,
    source: str | None = None,
    tokenizer: Path | None = None,
    watcher: Watcher | None = None,
) -> dict[str, Any]:
    """All runs, and what they show."""
    refuse_bidirectional(settings.contestants)
    bpe, training, held_out, record = fig8.corpus(settings, folder, source, tokenizer)

    def job(contestant: Contestant, seed: int) -> Job:
        described = Run(
            TASK, contestant.name, seed, contestant.budget(settings.budget), contestant.label, contestant.options,
            {**asdict(settings.size), "causal": True}, record, contestant.steps is not None,
        )  # fmt: skip

        def start(at: Path, on_step: OnStep | None) -> dict[str, Any]:
            return train(
                described, at, lambda: build(settings, contestant, bpe.get_vocab_size()), training, held_out, next_token,  # type: ignore[arg-type]
                on_step=on_step,
            )  # fmt: skip

        return Job(described, start)

    jobs = [job(contestant, seed) for contestant, seed in lineup(settings.contestants, settings.seeds, own_steps=True)]
    results = run_all(jobs, folder, watcher)
    note = "Same data order and budget for all; nats per token; to softmax: mean difference to the run with the same seed, and "
    note += "its 95 % interval."
    found = {
        "experiment": TASK,
        "title": "A causal language model from scratch",
        "settings": asdict(settings),
        "data": record,
        "runs": results,
        "tables": [{**fig8.table(results), "title": "Validation loss", "note": note}],
    }
    return {**found, "verdicts": [verdict.as_data() for verdict in verdicts(results)]}


def build(settings: fig8.Settings, contestant: Contestant, vocabulary: int) -> CausalLanguageModel:
    return CausalLanguageModel(settings.size, vocabulary, contestant.name, contestant.options)


def refuse_bidirectional(contestants: tuple[str, ...]) -> None:
    without = [each.name for each in each_once(contestants) if not registry.card(each.name).causal]
    if without:
        raise ValueError(f"{', '.join(without)} cannot be trained here: a causal language model needs a causal form")


def planned(settings: fig8.Settings) -> list[Planned]:
    """The models of a run, for a check."""
    refuse_bidirectional(settings.contestants)

    def of(contestant: Contestant) -> Planned:
        def made(layers: int) -> CausalLanguageModel:
            return build(replace(settings, size=replace(settings.size, layers=layers)), contestant, settings.vocabulary)

        def samples(count: int, length: int = settings.size.length) -> dict[str, Any]:
            ids = tokens(settings.vocabulary, length, count)
            return {"input_ids": ids, "labels": ids}

        def counted(model: CausalLanguageModel, given: dict[str, Tensor]) -> Tensor:
            return model.logits(given["input_ids"]).float().logsumexp(-1).sum()

        def few(count: int) -> dict[str, Any]:
            return samples(count, FEW_TOKENS)

        return Planned(TASK, contestant.label, settings.budget, settings.size.layers, made, samples, counted, few)

    return [of(contestant) for contestant in each_once(settings.contestants)]


def verdicts(results: list[dict[str, Any]]) -> list[Verdict]:
    losses = {label: mean_and_spread(values)[0] for label, values in by_label(results, "loss").items()}
    found = []
    for name in ("lln", "lln_diag", "near_far"):
        if name in losses and "softmax" in losses:
            numbers = f"validation loss {losses[name]:.3f} against {losses['softmax']:.3f} of softmax"
            claim = f"{name} learns a causal language model as well as softmax"
            found += on_a_par(results, TASK, name, "softmax", fig8.minus_loss, claim, numbers, ".3f", fig8.NATS_ALIKE)
    claim = "LLN+Diag is ahead of the other linear attentions in a causal language model"
    return found + ahead_of_linear(results, TASK, fig8.minus_loss, claim, ".3f")


def draw(found: dict[str, Any]) -> Figure:
    return curves.draw(found)
