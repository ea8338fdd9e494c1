"""How close a pretrained model stays to itself when near-far attention takes the place of softmax, without a gradient step.

Everything is what `lln.hf.convert(model, "lln_near_far", ...)` does: alpha, beta and the mean key measured on a few training
texts, weights fitted head by head in one pass. `CHOSEN` is its own choice; the other rows are there for comparison. Measured
on other texts: of encoders the cosine of the mean-pooled embedding to the original's and the correlation of the similarities of
all pairs, of long texts, which fill the length, and of short ones, padded; of causal models the perplexity of long texts. A
BERT with fewer positions than the length has them stretched first (`stretch`), and "the original" is softmax with these.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lln.hf.conversion.closeness import Closeness
from lln.hf.conversion.convert import convert, unload
from lln.hf.conversion.near_far import normal_equations
from lln.hf.conversion.pretrained import is_causal, load
from lln.hf.conversion.text_file import TextFile
from lln.hf.options import NEAR_FAR, options_of
from lln.near_far import NEUTRAL
from lln.near_far.fit import NearFarFit
from lln.ops.near_far import WEIGHTS
from lln.results import write_result
from lln_lab.bench.token_losses import TokenLosses
from lln_lab.experiments.models.pretrained import KIND as BERT
from lln_lab.experiments.models.pretrained import stretch

NOT_FITTED, NEAR_ALONE, CHOSEN = "not fitted", "near alone", "chosen by cross-validation"
BASES: dict[str, tuple[str, ...]] = {
    "near": ("near",),
    "near and LLN": ("near", "lln"),
    "near, mean and slope": ("near", "mean", "slope"),
    "near, LLN, mean and slope": WEIGHTS,
}
ALL = "near, LLN, mean and slope"
Rows = tuple[tuple[dict[str, Any], tuple[str, ...]], ...]
ROWS: Rows = (
    ({"block_size": 64}, (NEAR_ALONE, NOT_FITTED, *BASES, CHOSEN)),
    ({"block_size": 64, "first_tokens": 4}, (CHOSEN,)),
    ({"block_size": 64, "neighbours": 1}, (CHOSEN,)),
    ({"block_size": 64, "neighbours": 1, "first_tokens": 4}, (NEAR_ALONE, CHOSEN)),
    ({"block_size": 16}, (CHOSEN,)),
    ({"block_size": 16, "neighbours": 1}, (CHOSEN,)),
)
CAUSAL_ROWS: Rows = (({"block_size": 64, "neighbours": 1, "first_tokens": 4}, (NEAR_ALONE, CHOSEN, ALL)),)


@dataclass(frozen=True)
class Plan:
    model: str
    data: str  # texts to fit on: JSON lines with a `text`, or a text a line
    test_data: str
    texts: int = 8  # long, and as many short ones, to fit on
    test_texts: int = 48
    length: int = 512
    join: int = 0  # characters that lines are joined to
    bases: tuple[str, ...] = ()  # which of the rows; all if empty
    threads: int = 0  # 0 leaves it to torch
    seed: int = 0


def run(plan: Plan, path: Path, on_progress: Callable[[str], None]) -> dict[str, Any]:
    """Every row, on long and short texts; the file is written after each."""
    if plan.threads:
        torch.set_num_threads(plan.threads)
    tokenizer, model = load(plan.model)
    causal = is_causal(model)
    positions = getattr(model.config, "max_position_embeddings", plan.length)
    if not causal and plan.length > positions:
        if model.config.model_type != BERT:
            raise ValueError(
                f"{plan.model}, of type {model.config.model_type}, has {positions} positions, and only a BERT's are stretched: "
                f"give a --length of at most {positions}"
            )
        stretch(model, plan.length)
    train = TextFile(Path(plan.data), plan.length, plan.join, plan.seed).leaving(Path(plan.test_data), plan.test_texts)
    groups = train.to_measure_on(Path(plan.test_data)).batches(model, tokenizer, plan.test_texts, 1 if causal else 4)
    fit_on = train.batches(model, tokenizer, plan.texts, 1 if causal else 4)
    if causal:  # short texts have nothing that is far
        groups, fit_on = ({"long": found["long"]} for found in (groups, fit_on))
    batches = [batch for group in fit_on.values() for batch in group]
    on_progress("softmax")
    measure: Any = TokenLosses(model, groups["long"]) if causal else Closeness(model, groups)
    count = {name: sum(len(b["input_ids"]) for b in found) for name, found in groups.items()}
    result: dict[str, Any] = {
        "model": Path(plan.model).name,
        "length": plan.length,
        "positions": positions,  # the model's own, before they are stretched
        "fitted_on": {name: sum(len(b["input_ids"]) for b in found) for name, found in fit_on.items()},
        "tested_on": count,
        **({"softmax": measure.softmax} if causal else {}),
        "rows": [],
    }
    for near, bases in CAUSAL_ROWS if causal else ROWS:
        wanted = [basis for basis in bases if not plan.bases or basis in plan.bases]
        if not wanted:
            continue
        on_progress(f"fitting {near}")
        begun, spent = time.perf_counter(), time.process_time()
        convert(model, NEAR_FAR, batches, fit=False, **near)
        fits = normal_equations(model, batches, options_of(model.config))
        seconds = {"seconds_to_fit": time.perf_counter() - begun, "cpu_seconds_to_fit": time.process_time() - spent}
        for basis in wanted:
            on_progress(f"{basis} {near}")
            errors = []
            for module, fit in fits.items():
                weights = weights_of(fit, basis)
                module.lln.set(weights=weights)  # type: ignore[union-attr, operator]
                errors.append(float(fit.error(weights).mean()))
            row = {"near": near, "basis": basis, **seconds, "error_of_each_layer": errors}
            if basis == CHOSEN:
                row["share_of_heads_that_use"] = shares([weights_of(fit, basis) for fit in fits.values()])
            result["rows"].append({**row, **measure(model)})
            write_result(path, result, plan.seed)
        unload(model)
    return result


def weights_of(fit: NearFarFit, basis: str) -> Tensor:
    """(Hq, 4)."""
    if basis == CHOSEN:
        return fit.best()
    if basis in BASES:
        return fit.weights(parts=BASES[basis])
    given = NEUTRAL if basis == NOT_FITTED else (1.0, 0.0, 0.0, 0.0)
    return torch.tensor(given, dtype=torch.float64).expand(fit.sums.right.shape[1], -1)


def shares(weights: list[Tensor]) -> dict[str, float]:
    """How many of all heads have a weight that is not zero, for each of the four."""
    used = (torch.cat(weights) != 0).double().mean(dim=0)
    return dict(zip(WEIGHTS, used.tolist(), strict=True))
