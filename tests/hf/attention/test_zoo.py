"""Members of the zoo as attention functions: what they keep."""

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

from lln import zoo
from lln.hf.attention.zoo import KEPT, zoo_forward
from tests.hf.models import make, output


def test_texts_beyond_the_models_positions_are_not_remembered_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[weakref.ref[Callable[..., Any]]] = []
    whole = zoo.attention

    def watched(*args: Any, **options: Any) -> Callable[..., Any]:
        function = whole(*args, **options)
        made.append(weakref.ref(function))
        return function

    monkeypatch.setattr(zoo, "attention", watched)
    forward = zoo_forward("cosformer")
    q = torch.randn(1, 2, 60, 4)
    module = torch.nn.Module()
    module.config = type("Config", (), {"max_position_embeddings": 16})()  # type: ignore[assignment]
    for length in range(20, 60):
        forward(module, *(q[:, :, :length],) * 3, is_causal=False)
    gc.collect()
    assert len(made) == 40
    assert sum(function() is not None for function in made) <= KEPT


def test_a_length_that_comes_again_gives_the_same() -> None:
    model = make("bert", "performer")
    ids = torch.randint(3, 40, (1, 30))
    with torch.no_grad():
        before = output(model, input_ids=ids)
        for limit in range(2, 14):  # each makes a function of its own
            model.config.max_position_embeddings = limit
            output(model, input_ids=ids[:, : limit + 1])
        model.config.max_position_embeddings = 512
        assert torch.equal(output(model, input_ids=ids), before)
