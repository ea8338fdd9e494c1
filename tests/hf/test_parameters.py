"""The parameters of a converted attention module, before anything is measured."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModel

from lln.hf import LayerShape, LLNParameters, convert
from lln.hf.distillation.maps import RotaryTiedParameters, TiedParameters
from tests.hf.models import inputs, make

NAMES = ("alpha", "beta", "feature_bias", "mix", "query_map", "key_map")

SHAPES = {
    "per head": LayerShape(4, 2, 8),
    "per feature": LayerShape(4, 2, 8, per_feature=True),
    "maps": LayerShape(4, 2, 8, per_feature=True, maps=True),
}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
def test_made_on_the_meta_device_and_reset_they_are_as_made_directly(shape: LayerShape) -> None:
    with torch.device("meta"):
        reset = LLNParameters(shape, mix=0.3)
    reset.to_empty(device="cpu")
    for x in reset.parameters():
        x.data.fill_(torch.nan)
    reset.reset_parameters()
    made = dict(LLNParameters(shape, mix=0.3).named_parameters())
    for name, x in reset.named_parameters():
        assert torch.equal(x, made[name]) and x.dtype == torch.float32 and not x.requires_grad, name
    assert torch.equal(reset.mix, torch.full((4,), 0.3))


@pytest.mark.parametrize("kind", [LLNParameters, TiedParameters, RotaryTiedParameters])
def test_a_reset_forgets_what_was_learned(kind: type[LLNParameters]) -> None:
    own = kind(SHAPES["maps"])
    for x in own.parameters():
        torch.nn.init.normal_(x)
    own.reset_parameters()
    q, k = torch.randn(1, 4, 5, 8), torch.randn(1, 2, 5, 8)
    torch.testing.assert_close((own.map_queries(q), own.map_keys(k)), (q, k))
    assert bool((own.alpha == 1).all()) and bool((own.feature_bias == 0).all())


@pytest.mark.parametrize("lacking", ["alpha", "maps", "everything"])
def test_what_a_folder_lacks_starts_as_in_a_new_model(lacking: str, tmp_path: Path) -> None:
    """transformers gives such parameters memory in which anything may stand; it tells of them as MISSING."""
    model = make("bert", "sdpa")
    del model.config.lln
    convert(model, calibrate=[inputs("bert")], block_size=8, maps=True).save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    gone = {"alpha": (".lln.alpha",), "maps": ("_map",), "everything": tuple(f".lln.{n}" for n in NAMES)}[lacking]
    stored = load_file(file)
    save_file({n: x for n, x in stored.items() if not n.endswith(gone)}, file, metadata={"format": "pt"})
    poison = [torch.full((1 << 12,), torch.nan) for _ in range(64)]  # memory that is handed out again
    del poison
    new = dict(LLNParameters(LayerShape(4, 4, 8, maps=True)).named_parameters())
    for name, x in AutoModel.from_pretrained(tmp_path).named_parameters():
        if ".lln." in name:
            wanted = new[name.split(".lln.")[1]] if name.endswith(gone) else stored[name]
            assert torch.equal(x, wanted) and not x.requires_grad, name


def test_a_loaded_model_is_as_frozen_as_a_converted_one(tmp_path: Path) -> None:
    model = make("bert", "sdpa")
    del model.config.lln
    convert(model, calibrate=[inputs("bert")], block_size=8).save_pretrained(tmp_path)
    for one in (model, AutoModel.from_pretrained(tmp_path)):
        frozen = {name for name, x in one.named_parameters() if not x.requires_grad}
        assert frozen == {name for name, _ in one.named_parameters() if ".lln." in name} != set()
