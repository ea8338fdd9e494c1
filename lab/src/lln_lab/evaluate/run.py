"""Each model on each task: the same examples for all, so that figures stand side by side."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

import lln.hf  # noqa: F401  a converted model is loaded as one
from lln.hf.conversion.pretrained import is_causal, load
from lln.hf.distillation.classify import embed
from lln_lab.evaluate.tasks import OF_EMBEDDINGS, Asked, perplexity


def evaluate(models: Sequence[str], asked: Sequence[Asked], on_progress: Callable[[str], None]) -> list[dict[str, Any]]:
    """A row for each task and figure: its name, and a number for each model."""
    columns = {name: _figures(name, asked, on_progress) for name in models}
    return [
        {
            "task": task.task,
            "file": task.path.name,
            "figure": figure,
            "models": {name: column[number][figure] for name, column in columns.items()},
        }
        for number, task in enumerate(asked)
        for figure in columns[models[0]][number]
    ]


@torch.no_grad()
def _figures(name: str, asked: Sequence[Asked], on_progress: Callable[[str], None]) -> list[dict[str, float]]:
    tokenizer, model = load(name)
    found = []
    for task in asked:
        on_progress(f"{name}: {task.task}")
        if (task.task == "perplexity") != is_causal(model):
            needs = "a causal model" if task.task == "perplexity" else "an encoder"
            raise ValueError(f"{task.task} needs {needs}; {name} is not one")
        if task.task == "perplexity":
            found.append(perplexity(task, model, tokenizer))
        else:
            embedding = partial(embed, model, tokenizer, max_length=task.max_length)
            found.append(OF_EMBEDDINGS[task.task](task, embedding))
    return found
