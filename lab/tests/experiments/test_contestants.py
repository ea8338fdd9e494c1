"""Who runs with which seed."""

import pytest

from lln_lab.experiments.contestants import lineup, parse


def test_a_member_with_its_options_and_its_own_number_of_seeds() -> None:
    found = parse("lln_diag:target=variance,block_size=32@2")
    assert (found.name, found.options, found.seeds) == ("lln_diag", {"target": "variance", "block_size": 32}, 2)
    assert found.label == "lln_diag (target=variance, block_size=32)"


def test_seeds_come_one_after_the_other_and_a_member_may_have_fewer_or_more() -> None:
    found = [(contestant.name, seed) for contestant, seed in lineup(["softmax", "elu@1", "lln@3"], 2)]
    assert found == [("softmax", 0), ("elu", 0), ("lln", 0), ("softmax", 1), ("lln", 1), ("lln", 2)]


def test_naming_one_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="given twice: lln_diag"):
        lineup(["lln_diag", "softmax", "lln_diag@2"], 1)
    assert len(lineup(["lln_diag", "lln_diag:target=paper"], 1)) == 2


@pytest.mark.parametrize("text", ["elu@", "elu@0", "elu@many"])
def test_a_wrong_number_of_seeds_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="seeds after @ must be at least 1"):
        parse(text)
