"""recall and needle: the answer is in the row, once, and can be looked up."""

import pytest

import lln_lab.data
from lln_lab.data.needle import Needle
from lln_lab.data.recall import Recall


@pytest.mark.parametrize(("length", "pairs"), [(256, 4), (1024, 8), (16, 8), (2, 1), (4096, 4)])
def test_every_query_asks_for_the_value_of_its_key(length: int, pairs: int) -> None:
    task, data = Recall(length, pairs), lln_lab.data.load("recall", length=length, pairs=pairs)
    for index in range(20):
        tokens, labels = (data.train[index][key].tolist() for key in ("input_ids", "labels"))
        assert len(tokens) == len(labels) == length and min(tokens) > 0 and max(tokens) < (data.vocabulary or 0)
        queries = [at for at, label in enumerate(labels) if label != -100]
        assert queries == list(range(length - pairs, length))
        told = dict(divmod(x - task.first_pair, task.symbols) for x in tokens if x >= task.first_pair)
        assert len(told) == pairs
        assert [told[tokens[at] - task.first_key] for at in queries] == labels[length - pairs :]


def test_pairs_are_anywhere_and_queries_in_another_order() -> None:
    task, data = Recall(512), lln_lab.data.load("recall", length=512)
    starts, same_order = [], 0
    for index in range(200):
        tokens = data.train[index]["input_ids"].tolist()
        at = {(x - task.first_pair) // task.symbols: n for n, x in enumerate(tokens) if x >= task.first_pair}
        asked = [at[key - task.first_key] for key in tokens[-4:]]
        starts += asked
        same_order += asked == sorted(asked)
    assert min(starts) < 20 and max(starts) > 480 and 240 < sum(starts) / len(starts) < 270
    assert same_order < 40  # 1 in 24 by chance


@pytest.mark.parametrize("length", [2, 64, 1024, 32_768])
def test_the_needle_is_the_marked_value(length: int) -> None:
    task, data = Needle(length), lln_lab.data.load("needle", length=length)
    places = set()
    for index in range(20):
        tokens, labels = (data.train[index][key].tolist() for key in ("input_ids", "labels"))
        marked = [at for at, x in enumerate(tokens) if x >= task.first_marked]
        assert len(marked) == 1 and tokens.count(1) == 1 and tokens[-1] == 1
        assert labels[:-1] == [-100] * (length - 1) and labels[-1] == tokens[marked[0]] - task.first_marked
        places.add(marked[0])
    assert length == 2 or len(places) > 10
