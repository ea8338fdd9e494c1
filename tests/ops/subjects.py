"""What the contract tests run over: every operation, every backend it has, every device there is.

A backend that cannot take some operands says so, and that case is skipped, counted and shown at the end of the run; nothing is
computed by another backend instead. `compute` makes sure that the backend asked for was the one that ran.
"""

import dataclasses
from collections import Counter
from typing import Any

import hypothesis
import pytest
import torch
from torch import Tensor

from lln.ops.blocks import blocks
from lln.ops.diag import diag, diag_step
from lln.ops.lln import attention
from lln.ops.near_far import near_far
from lln.ops.operation import Operation

OPERATIONS = {operation.name: operation for operation in (attention, blocks, diag, diag_step, near_far)}
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]

refusals: Counter[str] = Counter()  # how often a backend would not take what was drawn, and why


@dataclasses.dataclass(frozen=True)
class Subject:
    operation: str
    backend: str
    device: str

    def __str__(self) -> str:
        return f"{self.operation}-{self.backend}-{self.device}"


def subjects(operation: str) -> list[Subject]:
    """The truth is not tested against itself."""
    found = [b.name for b in OPERATIONS[operation].backends if b.name != "oracle" and b.unavailable() is None]
    return [Subject(operation, name, device) for name in found for device in DEVICES]


def every_subject(operation: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("subject", subjects(operation), ids=str)


def compute(subject: Subject, x: Any) -> Any:
    """The results of `x` by the subject's backend, or a skip that is counted."""
    operation: Operation = OPERATIONS[subject.operation]
    x = type(x)(*(t.to(subject.device) if isinstance(t, Tensor) else t for t in x))
    backend = operation.backends[subject.backend]
    reason = backend.refusal(x)
    if reason is not None:
        refusals[f"{subject}: {reason}"] += 1
        if hypothesis.currently_in_test_context():
            hypothesis.reject()
        pytest.skip(reason)
    calls = []

    def counted(operands: Any) -> Any:
        calls.append(subject)
        return backend.forward(operands)

    operation.backends.register(dataclasses.replace(backend, forward=counted))
    try:
        found = operation(x, subject.backend)
    finally:
        operation.backends.register(backend)
    assert calls, f"{subject} was asked for, and something else ran"
    return found


# For tests of functions that take `backend=`: the names that every operation has here.
NAMES = [s.backend for s in subjects("diag") if s.device == "cpu"]
every_backend_name = pytest.mark.parametrize("backend", NAMES)
