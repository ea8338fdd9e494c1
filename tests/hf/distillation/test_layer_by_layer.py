"""What a converted model is worth with LLN in some of its layers only."""

import pytest
import torch

from lln.hf import convert
from lln.hf.distillation.layer_by_layer import first_token_weight, layer_by_layer, softmax_in
from lln.hf.distillation.maps import converted_modules
from tests.hf.models import inputs, make, output


@pytest.mark.parametrize("family", ["bert", "llama"])
def test_layers_are_switched_one_by_one(family: str) -> None:
    original = make(family, "sdpa")
    del original.config.lln
    with torch.no_grad():
        softmax = output(original, **inputs(family))
        model = convert(original, calibrate=[inputs(family)], block_size=8)
        found = layer_by_layer(model, lambda m: output(m, **inputs(family)))
        everywhere = output(model, **inputs(family))
        kept = convert(_fresh(family), calibrate=[inputs(family)], block_size=8, keep_softmax=[0])
        torch.testing.assert_close(found["only"][1], output(kept, **inputs(family)))
        torch.testing.assert_close(found["only"][0], found["up_to"][0])
        torch.testing.assert_close(found["up_to"][1], everywhere)
        assert not torch.allclose(found["only"][0], found["only"][1])
        with softmax_in(converted_modules(model)):
            torch.testing.assert_close(output(model, **inputs(family)), softmax)
        torch.testing.assert_close(output(model, **inputs(family)), everywhere)


def test_the_weight_of_the_first_token_is_that_of_softmax_without_padding() -> None:
    model = convert(_fresh("bert"), calibrate=[inputs("bert")], block_size=8)
    given = inputs("bert", batch=1, length=12)
    plain = first_token_weight(model, {**given, "attention_mask": torch.ones(1, 12, dtype=torch.long)})
    padded = torch.nn.functional.pad(given["input_ids"], (0, 5), value=7)
    mask = torch.nn.functional.pad(torch.ones(1, 12, dtype=torch.long), (0, 5))
    assert first_token_weight(model, {"input_ids": padded, "attention_mask": mask}) == pytest.approx(plain, rel=1e-4)
    eager = _fresh("bert")
    eager.set_attn_implementation("eager")
    with torch.no_grad():
        weights = eager(**given, output_attentions=True).attentions
    assert plain == pytest.approx([float(w[:, :, 1:, 0].mean()) for w in weights], rel=1e-4)


def _fresh(family: str):  # type: ignore[no-untyped-def]
    model = make(family, "sdpa")
    del model.config.lln
    return model
