"""`lln bench parallel`: the plan's formulas, and losses, memory and traffic of a small run."""

import pytest
import torch

from lln_lab.bench.parallel import Plan, run
from lln_lab.bench.parallel_plan import Setting, planned, state_numbers


def test_states_do_not_grow_with_the_length_and_rings_do() -> None:
    short, long = (planned(Setting(tokens=n))["schemes"] for n in (2**20, 2**21))
    received = {name: (short[name]["received_bytes_a_layer"], long[name]["received_bytes_a_layer"]) for name in short}
    assert received["LLN+Diag"][0] == received["LLN+Diag"][1]
    assert all(b == 2 * a for name, (a, b) in received.items() if name != "LLN+Diag")


def test_a_state_of_roberta_is_200_kilobytes() -> None:
    assert 4 * state_numbers(12, 64, 64)[0] == 202_752


@pytest.mark.slow
def test_a_small_run_has_the_losses_of_one_process_and_the_traffic_of_the_formula() -> None:
    torch.set_num_threads(1)
    result = run(Plan(lengths=(2048,), processes=(1, 2), steps=2, timed_length=4096))
    for row, goal in zip(result["training"], result["goals"], strict=True):
        assert row["states_sent_a_step"] == row["states_formula"]
        assert goal["losses_relative"] < 1e-5
