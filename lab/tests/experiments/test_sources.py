"""`--preset paper` against the table of its sources."""

from pathlib import Path

import pytest

from lln_lab.cli.reproduce_training import COMMANDS
from lln_lab.experiments.sources import OURS, PAPER, PRESETS, RECIPE, ROWS, of_preset, resolve
from lln_lab.pages import presets

SHARED = {
    "fig10": "table3",
    "table4": "lra",
    "table5": "lra",
    "sensitivity": "lra",
    "causal-lm": "fig8",
}  # commands that take another's preset


@pytest.mark.parametrize("command", PRESETS)
def test_every_hyper_parameter_resolves_to_its_row(command: str) -> None:
    for name, value in of_preset(command).items():
        found, origin, source = resolve(command, name)
        assert found == value, f"{name} of {command} is {value}, and its row says {found}"
        assert origin in (PAPER, RECIPE, OURS) and source


@pytest.mark.parametrize("command", ROWS)
def test_no_row_is_left_over(command: str) -> None:
    assert set(ROWS[command]) <= set(of_preset(command))


def test_every_training_command_has_a_preset_in_the_table() -> None:
    assert {SHARED.get(name, name) for name in COMMANDS} == set(PRESETS)


def test_a_number_without_a_row_is_an_error() -> None:
    with pytest.raises(KeyError, match=r"budget.unheard_of of fig8"):
        resolve("fig8", "budget.unheard_of")


def test_the_recipes_numbers_that_were_looked_up() -> None:
    from lln_lab.experiments import fig8, lra, table1
    from lln_lab.experiments.budgets import budget_of

    glue, arena, before = table1.PRESETS["paper"], lra.PRESETS["paper"], fig8.PRESETS["paper"].budget
    steps = {task: (budget_of(glue, task).steps, budget_of(glue, task).warmup) for task in glue.tasks}
    assert steps == {
        "mnli": (123_873, 7_432), "qnli": (33_112, 1_986), "qqp": (113_272, 28_318), "sst2": (20_935, 1_256)
    }  # fmt: skip
    assert {task: budget_of(arena, task).warmup for task in arena.tasks} == {
        "text": 80, "listops": 1_000, "retrieval": 800, "pathfinder": 312, "image": 175
    }  # fmt: skip
    assert before.at_once(processes=8) == 16 and before.adam_epsilon == 1e-6


def test_the_page_is_made_from_the_table() -> None:
    written = Path(__file__).parents[3] / "docs" / "presets.md"
    assert written.read_text() == presets.page(), "python -m lln_lab.pages.presets docs"
