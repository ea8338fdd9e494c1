"""One training run: a folder that says what it is, resumes where it was stopped, and ends with a result.

    config.json       what defines the run: task, attention, sizes, seed, budget, data
    checkpoint-N/     the newest two checkpoints (weights as safetensors)
    result.json       losses, evaluation, time; once it is there the run is over, and starting it again reads it
    model/            the trained weights, where they are kept

Under torchrun or accelerate the same run is spread over the processes, with the same batches.
"""

import atexit
import json
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from torch import nn
from transformers import PrinterCallback, TrainingArguments, set_seed
from transformers.utils.logging import disable_progress_bar

from lln.results import write_result
from lln.zoo.encoder import count_parameters
from lln_lab.experiments.models.checkpointing import checkpoint_layers
from lln_lab.experiments.training.budget import Budget
from lln_lab.experiments.training.checkpoints import newest
from lln_lab.experiments.training.lock import held
from lln_lab.experiments.training.stream import Held, Lengths, Make, Stream
from lln_lab.experiments.training.trainer import BudgetTrainer
from lln_lab.experiments.training.watch import Concentration, Look, Looks, LossScale, OnStep, Progress, StepTimes

RESULT, CONFIG = "result.json", "config.json"
LANGUAGE = ("mlm", "causal_lm")  # judged by their loss alone: logits over a vocabulary are not kept
WATCHED = ("softmax", "lln", "lln_diag", "block_diagonal")  # what a probe sees of others is a part, not their attention
Metrics = Callable[[Any], dict[str, float]]


@dataclass(frozen=True)
class Run:
    """What defines a run. Two runs with equal fields give equal numbers on the same number of threads."""

    task: str
    attention: str
    seed: int
    budget: Budget
    label: str = ""
    options: dict[str, Any] = field(default_factory=dict)  # of the zoo member
    model: dict[str, Any] = field(default_factory=dict)  # sizes
    data: dict[str, Any] = field(default_factory=dict)  # name, source, rows, files with their checksums
    own_steps: bool = False  # the budget is this contestant's alone: its folder says so

    @property
    def name(self) -> str:
        """The run's folder."""
        marks = [self.task.replace("/", "-"), self.attention, *(f"{k}={v}" for k, v in sorted(self.options.items()))]
        marks += [f"steps={self.budget.steps}"] if self.own_steps else []
        return "_".join([*marks, f"seed{self.seed}"])


def train(
    run: Run,
    folder: Path,
    build: Callable[[], nn.Module],
    training: Sequence[Any],
    validation: Sequence[Any],
    make: Make,
    *,
    make_validation: Make | None = None,
    collate: Callable[[list[dict[str, Any]]], dict[str, Any]] | None = None,
    metrics: Metrics | None = None,
    keep_model: bool = False,
    on_step: OnStep | None = None,
    look: tuple[int, Look] | None = None,
    lengths: Sequence[int] | None = None,
) -> dict[str, Any]:
    """Train from scratch, or from the newest checkpoint in the folder, or just read the result.

    With the `lengths` of the training items, those of like length share a batch.
    """
    folder.mkdir(parents=True, exist_ok=True)
    _same_run(run, folder)
    processes().wait_for_everyone()
    done = folder / RESULT
    if done.exists():
        if keep_model and not (folder / "model").is_dir():
            raise ValueError(f"{folder} holds a finished run without its weights: choose another --out, or remove it")
        return dict(json.loads(done.read_text()))
    with held(folder) if processes().is_main_process else nullcontext():
        return _train(
            run, folder, build, training, Held(validation, make_validation or make), make, collate, metrics, keep_model,
            on_step, look, lengths,
        )  # fmt: skip


def _train(
    run: Run,
    folder: Path,
    build: Callable[[], nn.Module],
    training: Sequence[Any],
    held_out: Held,
    make: Make,
    collate: Callable[[list[dict[str, Any]]], dict[str, Any]] | None,
    metrics: Metrics | None,
    keep_model: bool,
    on_step: OnStep | None,
    look: tuple[int, Look] | None,
    lengths: Sequence[int] | None,
) -> dict[str, Any]:
    disable_progress_bar()  # of every save; the run has one of its own
    set_seed(run.seed)
    model = build()
    if run.budget.checkpointing:
        checkpoint_layers(model)
    arguments = _arguments(run, folder)
    times, scale = StepTimes(), LossScale()
    trainer = BudgetTrainer(
        run.budget,
        model=model,
        args=arguments,
        train_dataset=Stream(
            training,
            make,
            run.seed,
            run.budget.steps * run.budget.batch,
            None if lengths is None else Lengths(lengths, run.budget.batch),
        ),
        eval_dataset=held_out,
        data_collator=collate,
        compute_metrics=metrics,
        callbacks=[times, scale, *([Progress(on_step)] if on_step is not None else [])],
    )
    trainer.remove_callback(PrinterCallback)
    scale.scaler = trainer.accelerator.scaler
    if run.budget.watch_every is not None and run.attention in WATCHED:
        Concentration(every=run.budget.watch_every, rows=32).add_to(trainer)
    if look is not None:
        first = trainer.data_collator([held_out[i] for i in range(min(len(held_out), run.budget.batch))])
        trainer.add_callback(Looks(*look, first))
    trainer.train(resume_from_checkpoint=newest(folder))
    begun = time.process_time()
    evaluation = _evaluation(trainer.evaluate())
    evaluated = time.process_time() - begun
    result = {
        **described(run),
        "parameters": count_parameters(model),
        "steps": run.budget.steps,
        "seconds_per_step": statistics.median(times.clock) if times.clock else None,
        "cpu_seconds_per_step": statistics.median(times.processor) if times.processor else None,
        "evaluation_cpu_seconds": evaluated,
        "peak_bytes": torch.cuda.max_memory_allocated() if torch.cuda.is_available() else None,
        "history": [_entry(x) for x in trainer.state.log_history if "train_runtime" not in x],
        "evaluation": evaluation,
    }
    if trainer.is_world_process_zero():
        if keep_model:
            trainer.save_model(str(folder / "model"))
        write_result(folder / RESULT, result, run.seed, strict=False)
    return result


def _arguments(run: Run, folder: Path) -> TrainingArguments:
    budget = run.budget
    at_once = budget.at_once(processes().num_processes)
    return TrainingArguments(
        output_dir=str(folder),
        max_steps=budget.steps,
        per_device_train_batch_size=at_once,
        per_device_eval_batch_size=at_once,
        gradient_accumulation_steps=budget.accumulate,
        train_sampling_strategy="sequential",  # the stream is in order already
        learning_rate=budget.learning_rate,
        warmup_steps=budget.warmup,
        lr_scheduler_type="linear" if budget.schedule == "one_cycle" else budget.schedule,  # the trainer makes its own
        weight_decay=budget.weight_decay,
        adam_beta2=budget.adam_beta2,
        adam_epsilon=budget.adam_epsilon,
        max_grad_norm=budget.clip,
        logging_steps=budget.log_every,
        logging_nan_inf_filter=False,
        eval_strategy="no" if budget.evaluate_every is None else "steps",
        eval_steps=budget.evaluate_every,
        save_strategy="no" if budget.save_every is None else "steps",
        save_steps=budget.save_every or 1,
        fp16=budget.precision == "float16",
        bf16=budget.precision == "bfloat16",
        use_cpu=not torch.cuda.is_available(),
        seed=run.seed,
        remove_unused_columns=False,
        disable_tqdm=True,
        report_to=[],
        log_level="error",
        dataloader_pin_memory=torch.cuda.is_available(),
        ddp_find_unused_parameters=False,
        prediction_loss_only=run.task in LANGUAGE,
    )


def processes() -> PartialState:
    """How many there are and which one this is, under torchrun, accelerate or alone."""
    state = PartialState(cpu=not torch.cuda.is_available())
    if state.num_processes > 1:
        _leave_at_exit()
    return state


@cache
def _leave_at_exit() -> None:
    """End the process group while Python still runs.

    A thread of gloo needs the interpreter to drop the last tensors that it sent. Once Python shuts down there is none, the
    process aborts, and a run that is over looks failed. DistributedDataParallel keeps the threads alive beyond the group, so
    they cannot be joined; they get a moment.
    """

    def leave() -> None:
        PartialState().destroy_process_group()
        time.sleep(0.1)

    atexit.register(leave)


def _same_run(run: Run, folder: Path) -> None:
    """A folder belongs to one run; a second, different one is refused with what differs."""
    path, config = folder / CONFIG, json.loads(json.dumps(described(run)))
    if not path.exists():
        if processes().is_main_process:
            write_result(path, config, run.seed)
        return
    before = json.loads(path.read_text())
    before.pop("provenance", None)
    changed = sorted(key for key in {*before, *config} if before.get(key) != config.get(key))
    if changed:
        told = "; ".join(f"{key}: {before.get(key)} there, {config.get(key)} now" for key in changed)
        raise ValueError(f"{folder} holds another run ({told}): choose another --out, or remove it")


def described(run: Run) -> dict[str, Any]:
    """What defines the run, as its folder and its result hold it."""
    return {
        "task": run.task,
        "attention": run.attention,
        "label": run.label or run.attention,
        "options": run.options,
        "seed": run.seed,
        "model": run.model,
        "budget": asdict(run.budget),
        "data": run.data,
    }


def _evaluation(found: dict[str, float]) -> dict[str, float]:
    timing = ("runtime", "samples_per_second", "steps_per_second")
    named = {name.removeprefix("eval_"): value for name, value in found.items() if name != "epoch"}
    return {name: value for name, value in named.items() if not name.endswith(timing)}


def _entry(logged: dict[str, Any]) -> dict[str, Any]:
    dropped = ("epoch", "eval_runtime", "eval_samples_per_second", "eval_steps_per_second")
    return {name: value for name, value in logged.items() if name not in dropped}
