"""One budget for all tasks, with what differs from task to task.

Recipes have a number of updates, a warm-up, a batch and a rate for each task: `by_task` holds those that are not the budget's.
"""

from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any, Protocol, TypeVar

from lln_lab.experiments.training import Budget


class HasBudget(Protocol):
    @property
    def budget(self) -> Budget: ...


class HasBudgets(HasBudget, Protocol):
    @property
    def by_task(self) -> dict[str, dict[str, Any]]: ...


Settings = TypeVar("Settings", bound=HasBudget)


def budget_of(settings: HasBudgets, task: str) -> Budget:
    """What the task trains with."""
    return replace(settings.budget, **settings.by_task.get(task, {}))


def changed(settings: Settings, change: Callable[[Budget], Budget]) -> Settings:
    """The same settings with `change` made to the budget of every task."""
    budget = change(settings.budget)
    more: dict[str, Any] = {"budget": budget}
    by_task: dict[str, dict[str, Any]] | None = getattr(settings, "by_task", None)
    if by_task is not None:
        more["by_task"] = {
            task: _differences(change(replace(settings.budget, **own)), budget) for task, own in by_task.items()
        }
    return replace(settings, **more)  # type: ignore[type-var]


def _differences(own: Budget, common: Budget) -> dict[str, Any]:
    usual = asdict(common)
    return {name: value for name, value in asdict(own).items() if value != usual[name]}
