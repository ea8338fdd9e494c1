"""recall and needle: the answer is in the row, once, and can be looked up."""

import pytest

import lln.data


@pytest.mark.parametrize(("length", "pairs"), [(256, 32), (1024, 64), (96, 32), (3, 1), (4096, 8)])
def test_every_query_asks_for_the_value_after_its_key(length: int, pairs: int) -> None:
    data = lln.data.load("recall", length=length, pairs=pairs)
    for index in range(20):
        tokens, labels = (data.train[index][key].tolist() for key in ("input_ids", "labels"))
        assert len(tokens) == len(labels) == length
        queries = [at for at, label in enumerate(labels) if label != -100]
        assert queries == list(range(length - pairs, length))
        for at in queries:
            places = [n for n in range(length - pairs) if tokens[n] == tokens[at]]
            assert len(places) == 1 and tokens[places[0] + 1] == labels[at]
        assert len({tokens[at] for at in queries}) == pairs


def test_pairs_are_anywhere_and_queries_in_another_order() -> None:
    data = lln.data.load("recall", length=512, pairs=4)
    starts, same_order = [], 0
    for index in range(200):
        tokens = data.train[index]["input_ids"].tolist()
        at = [tokens.index(key) for key in tokens[-4:]]
        starts += at
        same_order += at == sorted(at)
    assert min(starts) < 20 and max(starts) > 480 and 240 < sum(starts) / len(starts) < 270
    assert same_order < 40  # 1 in 24 by chance


@pytest.mark.parametrize("length", [3, 64, 1024, 32_768])
def test_the_needle_is_after_its_mark(length: int) -> None:
    data = lln.data.load("needle", length=length)
    places = set()
    for index in range(20):
        tokens, labels = (data.train[index][key].tolist() for key in ("input_ids", "labels"))
        assert tokens.count(1) == 1 and tokens.count(2) == 1 and tokens[-1] == 2
        assert labels[:-1] == [-100] * (length - 1) and labels[-1] == tokens[tokens.index(1) + 1] >= 3
        places.add(tokens.index(1))
    assert length == 3 or len(places) > 10
