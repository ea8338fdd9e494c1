"""One thread a worker: two workers fill two cores, and results do not depend on how many there are."""

import os
from collections import Counter
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, settings

from tests.ops.subjects import refusals

settings.register_profile("ordinary", deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
settings.load_profile("ordinary")

_gathered: Counter[str] = Counter()  # of all worker processes


def pytest_configure(config: pytest.Config) -> None:
    torch.set_num_threads(1)
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # of processes that a test starts


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def pytest_sessionfinish(session: pytest.Session) -> None:
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["refusals"] = dict(refusals)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: Any) -> None:
    _gathered.update(getattr(node, "workeroutput", {}).get("refusals", {}))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """What the contract tests could not run, because a backend would not take it."""
    told = _gathered + refusals
    if told:
        terminalreporter.section("refused by a backend")
        for reason, times in sorted(told.items()):
            terminalreporter.write_line(f"{times:6,} x {reason}")
