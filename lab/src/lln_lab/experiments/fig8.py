"""Figure 8: masked-language-model pre-training of RoBERTa with softmax, LLN and others; loss and gradient scale.

The paper trains RoBERTa-base on WikiText-103 with fairseq's defaults and shows that LLN's loss follows softmax's, and that
its inverse loss scale in float16 does not exceed softmax's. Here any members of the zoo are trained on the same batches with
the same masks; in float32, the CPU preset's, there is no loss scale, and the gradient's norm stands in its place.
"""

import math
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from tokenizers import ByteLevelBPETokenizer
from torch import Tensor

from lln_lab import data
from lln_lab.experiments import context, curves, loss_scale
from lln_lab.experiments.check import FEW_TOKENS, Planned, tokens
from lln_lab.experiments.contestants import Contestant, each_once, lineup
from lln_lab.experiments.evidence import by_frequency
from lln_lab.experiments.grid import Job, Watcher, by_label, data_record, mean_and_spread, run_all
from lln_lab.experiments.masking import HIDDEN, Masking, tokenizer_of, windows
from lln_lab.experiments.models.roberta import MaskedLanguageModel, Size, configuration
from lln_lab.experiments.pairs import ahead_of_linear, gain, gains, on_a_par
from lln_lab.experiments.training import Budget, Run, train
from lln_lab.experiments.training.run import processes
from lln_lab.experiments.training.watch import Look, OnStep
from lln_lab.experiments.verdict import Verdict


@dataclass(frozen=True)
class Settings:
    size: Size
    budget: Budget
    vocabulary: int
    validation_rows: int
    contestants: tuple[str, ...] = ("softmax", "lln", "lln_diag")
    seeds: int = 1
    source: str = ""


NATS_ALIKE = 0.02  # losses that differ by less are taken for equal: 2 % of the perplexity
GRADIENTS_ALIKE = 0.1  # gradient norms, as a share of softmax's

PRESETS = {
    "cpu": Settings(
        size=Size(layers=4, width=128, heads=4, feed_forward=512, length=256, dropout=0.0),
        budget=Budget(
            steps=1000, batch=4, learning_rate=1.5e-3, warmup=100, log_every=20, evaluate_every=250, save_every=250,
            watch_every=125, loss_scale_window=10,
        ),
        vocabulary=8192,
        validation_rows=128,
        source="sizes that train in minutes on two cores",
    ),
    "paper": Settings(
        size=Size(layers=12, width=768, heads=12, feed_forward=3072, length=512, dropout=0.1),
        budget=Budget(
            steps=125_000, batch=2048, accumulate=16, learning_rate=5e-4, warmup=10_000, schedule="polynomial",
            weight_decay=0.01, adam_beta2=0.98, adam_epsilon=1e-6, clip=0.0, log_every=100, evaluate_every=1_000,
            save_every=1_000, watch_every=1_000, precision="float16", loss_scale=128.0, loss_scale_window=128,
        ),
        vocabulary=50_265,
        validation_rows=10_000,
        source="the paper: RoBERTa-base on WikiText-103 with fairseq's defaults; fairseq's own recipe for base, 2,048 samples "
        "an update, 16 at a time and 16 times on each of eight GPUs: docs/presets.md",
    ),
}  # fmt: skip


def run(
    settings: Settings,
    folder: Path,
    *,
    source: str | None = None,
    tokenizer: Path | None = None,
    watcher: Watcher | None = None,
    keep_models: bool = False,
    look: tuple[int, Look] | None = None,
    by_context: bool = False,
) -> dict[str, Any]:
    """All runs, and what they show.

    look: (every so many steps, what to note of the model).
    by_context: note at the end how much of the loss comes from how far (`lln_lab.experiments.context`).
    """
    entries = lineup(settings.contestants, settings.seeds, own_steps=True)  # refused before data is loaded
    bpe, training, held_out, record = corpus(settings, folder, source, tokenizer)
    masking = Masking(bpe)

    def job(contestant: Contestant, seed: int) -> Job:
        described = Run(
            "mlm", contestant.name, seed, contestant.budget(settings.budget), contestant.label, contestant.options,
            asdict(settings.size), record, contestant.steps is not None,
        )  # fmt: skip

        def build() -> MaskedLanguageModel:
            config = configuration(settings.size, masking.vocabulary)
            return MaskedLanguageModel(config, contestant.name, contestant.options)

        def start(at: Path, on_step: OnStep | None) -> dict[str, Any]:
            found = train(
                described, at, build, training, held_out, masking,  # type: ignore[arg-type]
                keep_model=keep_models, on_step=on_step, look=look,
            )  # fmt: skip
            return context.noted(found, at, build, held_out, masking) if by_context else found

        return Job(described, start)

    jobs = [job(contestant, seed) for contestant, seed in entries]
    results = run_all(jobs, folder, watcher)
    found = {
        "experiment": "fig8",
        "title": "Masked-language-model pre-training (Figure 8)",
        "settings": {**asdict(settings), "seeds": settings.seeds},
        "data": record,
        "runs": results,
        "tables": [
            table(results),
            *([scales] if (scales := loss_scale.table(results))["rows"] else []),
            *context.table(results),
        ],
    }
    return {**found, "verdicts": [verdict.as_data() for verdict in verdicts(results)]}


def corpus(
    settings: Settings, folder: Path, source: str | None, tokenizer: Path | None
) -> tuple[ByteLevelBPETokenizer, Tensor, Tensor, dict[str, Any]]:
    """The tokenizer, windows of the training text and of the held-out text, and what a result says of them."""
    found = data.load("wikitext", source=source)
    texts = _texts(found.train)
    with processes().main_process_first():  # one trains the tokenizer, the others read it
        bpe = tokenizer_of(texts, folder / "tokenizer", settings.vocabulary, tokenizer)
    training = windows(texts, bpe, settings.size.length)
    held_out = windows(_texts(found.validation), bpe, settings.size.length)[: settings.validation_rows]
    vocabulary = bpe.get_vocab_size()
    counts = {"train": training.numel(), "validation": held_out.numel(), "vocabulary": vocabulary}
    guessing = by_frequency(training, held_out, vocabulary)
    return bpe, training, held_out, {**data_record(found), "tokens": counts, "guessing": guessing}


def planned(settings: Settings) -> list[Planned]:
    """The models of a run, for a check."""

    def counted(model: MaskedLanguageModel, given: dict[str, Any]) -> Any:
        hidden = model.roberta(given["input_ids"]).last_hidden_state
        return model.lm_head(hidden[:, : round(HIDDEN * settings.size.length)]).float().logsumexp(-1).sum()

    def of(contestant: Contestant) -> Planned:
        def build(layers: int) -> MaskedLanguageModel:
            config = configuration(replace(settings.size, layers=layers), settings.vocabulary)
            return MaskedLanguageModel(config, contestant.name, contestant.options)

        def samples(count: int, length: int = settings.size.length) -> dict[str, Any]:
            ids = tokens(settings.vocabulary, length, count)
            return {"input_ids": ids, "labels": ids.where(torch.arange(length) % round(1 / HIDDEN) == 0, -100)}

        def few(count: int) -> dict[str, Any]:
            return samples(count, FEW_TOKENS)

        return Planned("mlm", contestant.label, settings.budget, settings.size.layers, build, samples, counted, few)

    return [of(contestant) for contestant in each_once(settings.contestants)]


def with_contestants(settings: Settings, contestants: tuple[str, ...], seeds: int) -> Settings:
    return replace(settings, contestants=contestants, seeds=seeds)


def _texts(rows: data.Rows) -> list[str]:
    return [rows[i]["text"] for i in range(len(rows))]


def table(results: list[dict[str, Any]]) -> dict[str, Any]:
    rows = []
    for label, losses in by_label(results, "loss").items():
        own = [r for r in results if r["label"] == label]
        gained = gains(results, label, "softmax", minus_loss)
        mean, spread = mean_and_spread(losses)
        norms = gradient_norms(own)
        steps = [r["seconds_per_step"] for r in own if r["seconds_per_step"]]
        rows.append([
            label, round(mean, 4), round(spread, 4), len(losses),
            (-gain(gained)).told(".3f") if gained and label != "softmax" else None,
            own[0]["parameters"], round(largest(norms), 2),
            round(min(steps), 3) if steps else None,
        ])  # fmt: skip
    return {
        "title": "Validation loss after pre-training",
        "note": "Same data order, masks, heads and budget for all; nats per masked token; spread: standard deviation over "
        "seeds; to softmax: mean difference to the run with the same seed, and its 95 % interval.",
        "columns": [
            "attention",
            "loss",
            "spread",
            "seeds",
            "to softmax",
            "parameters",
            "largest gradient norm",
            "seconds per step",
        ],
        "rows": sorted(rows, key=lambda row: row[1]),
    }


def gradient_norms(results: list[dict[str, Any]], *, after_warmup: bool = False) -> list[float]:
    """At the steps that are logged whether a probe watches the run or not."""
    return [
        x["grad_norm"]
        for r in results
        for x in r["history"]
        if "grad_norm" in x
        and x["step"] % r["budget"]["log_every"] == 0
        and (x["step"] > r["budget"]["warmup"] or not after_warmup)
    ]


def largest(norms: list[float]) -> float:
    """NaN if one of them is, which max would pass over."""
    return max(norms) if norms and all(map(math.isfinite, norms)) else math.nan


def verdicts(results: list[dict[str, Any]]) -> list[Verdict]:
    runs = by_label(results, "loss")
    losses = {label: mean_and_spread(values) for label, values in runs.items()}
    if "softmax" not in losses:
        return []
    found = []
    for name in ("lln", "lln_diag"):
        if name in losses:
            numbers = f"validation loss {losses[name][0]:.3f} against {losses['softmax'][0]:.3f} of softmax"
            claim = f"the loss of {name} follows softmax's (A.8.1)"
            found += on_a_par(results, "mlm", name, "softmax", minus_loss, claim, numbers, ".3f", NATS_ALIKE)
    scaled = any(loss_scale.settled(r) is not None for r in results)
    for name in ("lln", "lln_diag"):
        found += [] if scaled else gradient_verdicts(results, name)  # float16 overflows now and then, on purpose
        claim = f"the inverse loss scale of {name} does not exceed softmax's (A.8.1, Figure 8b)"
        found += loss_scale.no_larger(results, "mlm", name, "softmax", claim, "softmax")
    return found + ahead_of_linear(
        results, "mlm", minus_loss, "LLN+Diag is ahead of the other linear attentions", ".3f"
    )


def gradient_verdicts(results: list[dict[str, Any]], name: str) -> list[Verdict]:
    """After the warm-up, in which all begin alike and gradients are largest."""
    norms = {
        label: [largest(gradient_norms([r], after_warmup=True)) for r in results if r["label"] == label]
        for label in (name, "softmax")
    }
    if not all(norms.values()) or not any(gradient_norms(results, after_warmup=True)):
        return []
    own, of_softmax = (mean_and_spread(values)[0] for values in norms.values())
    numbers = f"largest gradient norm after the warm-up: {own:.2f} and {of_softmax:.2f} of softmax"
    claim = f"gradients of {name} are no larger than softmax's (A.8.1, Figure 8b)"
    return on_a_par(
        results, "mlm", name, "softmax", lambda r: -largest(gradient_norms([r], after_warmup=True)), claim, numbers,
        ".2f", GRADIENTS_ALIKE * of_softmax,
    )  # fmt: skip


def minus_loss(result: dict[str, Any]) -> float:
    """Of a run: more is better."""
    return -float(result["evaluation"]["loss"])


def draw(found: dict[str, Any]) -> Figure:
    return curves.draw(found)
