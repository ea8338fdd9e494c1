"""Who runs with which seed."""

import pytest

from lln_lab.experiments.contestants import lineup, parse
from lln_lab.experiments.training import Budget, Run


def test_a_member_with_its_options_and_its_own_number_of_seeds() -> None:
    found = parse("lln_diag:target=variance,block_size=32@2")
    assert (found.name, found.options, found.seeds) == ("lln_diag", {"target": "variance", "block_size": 32}, 2)
    assert found.label == "lln_diag (target=variance, block_size=32)"


def test_seeds_come_one_after_the_other_and_a_member_may_have_fewer_or_more() -> None:
    found = [(contestant.name, seed) for contestant, seed in lineup(["softmax", "elu@1", "lln@3"], 2)]
    assert found == [("softmax", 0), ("elu", 0), ("lln", 0), ("softmax", 1), ("lln", 1), ("lln", 2)]


def test_naming_one_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="repeated: lln_diag"):
        lineup(["lln_diag", "softmax", "lln_diag@2"], 1)
    assert len(lineup(["lln_diag", "lln_diag:target=paper"], 1)) == 2


@pytest.mark.parametrize("text", ["elu@", "elu@0", "elu@many"])
def test_a_wrong_number_of_seeds_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="seeds after @ must be at least 1"):
        parse(text)


def test_steps_of_its_own_are_in_the_label_and_the_budget() -> None:
    found = parse("softmax#2000@3")
    assert (found.steps, found.seeds, found.label) == (2000, 3, "softmax (2,000 steps)")
    budget = Budget(steps=6000, batch=8, learning_rate=1e-3, warmup=600)
    assert (found.budget(budget).steps, found.budget(budget).warmup) == (2000, 200)
    assert parse("softmax").budget(budget) == budget
    with pytest.raises(ValueError, match="steps after # must be at least 1"):
        parse("softmax#0")


def test_runs_with_steps_of_their_own_have_folders_of_their_own() -> None:
    budget = Budget(steps=10, batch=1, learning_rate=1e-3)
    assert Run("text", "softmax", 0, budget).name == "text_softmax_seed0"
    assert Run("text", "softmax", 0, budget, own_steps=True).name == "text_softmax_steps=10_seed0"
    with pytest.raises(ValueError, match=r"'softmax \(10 steps\)' can have none of its own"):
        lineup(["softmax#10"], 1)
    assert len(lineup(["softmax#10", "softmax"], 1, own_steps=True)) == 2
