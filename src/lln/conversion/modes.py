"""A model is run and trained in a state of its own, and put back: modes and marks of modules, and which parameters learn."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def evaluating(*models: nn.Module) -> Iterator[None]:
    """Inside, the models are in eval mode; afterwards each module has its own mode again."""
    modes = {module: module.training for model in models for module in model.modules()}
    for model in models:
        model.eval()
    try:
        yield
    finally:
        for module, training in modes.items():
            module.training = training


@contextmanager
def marked(modules: Iterable[nn.Module], mark: str) -> Iterator[None]:
    """Inside, these modules have an attribute of this name, which is True."""
    chosen = list(modules)
    for module in chosen:
        module.__dict__[mark] = True
    try:
        yield
    finally:
        for module in chosen:
            del module.__dict__[mark]


@contextmanager
def frozen(model: nn.Module) -> Iterator[None]:
    """Inside, nothing learns but what is told to there; afterwards all is as it was, without gradients of what learned."""
    before = [(x, x.requires_grad) for x in model.parameters()]
    for x, _ in before:
        x.requires_grad_(False)
    try:
        yield
    finally:
        for x, wanted in before:
            if x.requires_grad:
                x.grad = None
            x.requires_grad_(wanted)
