"""A conversion as a file: small, checked against the weights it was fitted to, refused where it does not fit."""

from pathlib import Path

import pytest
import torch

pytest.importorskip("safetensors")

import lln
from lln.conversion.files import description, load, rebuild, save, weights_hash
from tests.conversion.models import Blocks, batches, torch_encoder


@pytest.fixture
def converted() -> Blocks:
    model = fresh()
    lln.convert(model, batches(), block_size=16)
    return model


def fresh() -> Blocks:
    torch.manual_seed(3)
    return Blocks().eval()


def test_a_saved_conversion_is_loaded_bit_for_bit(converted: Blocks, tmp_path: Path) -> None:
    path = save(converted, tmp_path / "blocks.safetensors")
    assert path.stat().st_size < 10_000
    model = load(fresh(), path)
    x = batches()[0]
    assert torch.equal(model(x), converted(x))
    lln.unload(model)
    assert torch.equal(model(x), fresh()(x))


def test_torchs_encoder_too(tmp_path: Path) -> None:
    model = torch_encoder()
    weights = {name: x.clone() for name, x in model.state_dict().items()}
    lln.convert(model, batches(), block_size=16)
    path = save(model, tmp_path / "encoder.safetensors")
    other = torch_encoder()
    other.load_state_dict(weights)
    assert torch.equal(load(other, path)(batches()[0]), model(batches()[0]))


def test_a_state_dict_goes_round_through_rebuild(converted: Blocks) -> None:
    model = rebuild(Blocks().eval(), description(converted))
    model.load_state_dict(converted.state_dict())
    assert torch.equal(model(batches()[0]), converted(batches()[0]))


def test_other_weights_are_refused_unless_asked_for(converted: Blocks, tmp_path: Path) -> None:
    path = save(converted, tmp_path / "blocks.safetensors")
    with pytest.raises(ValueError, match="fitted to other weights"):
        load(Blocks(), path)
    load(Blocks(), path, check=False)


def test_the_hash_is_of_the_models_own_weights(converted: Blocks) -> None:
    assert weights_hash(converted) == weights_hash(fresh())
    changed = fresh()
    with torch.no_grad():
        changed.feed[0][0].bias[0] += 1e-3
    assert weights_hash(changed) != weights_hash(fresh())


def test_files_that_are_something_else_are_refused(converted: Blocks, tmp_path: Path) -> None:
    from safetensors.torch import save_file

    damaged = tmp_path / "damaged.safetensors"
    damaged.write_bytes(save(converted, tmp_path / "whole.safetensors").read_bytes()[:200])
    with pytest.raises(ValueError, match="damaged or not a safetensors file"):
        load(fresh(), damaged)
    save_file({"x": torch.zeros(1)}, tmp_path / "other.safetensors")
    with pytest.raises(ValueError, match=r"not one that lln\.conversion\.save wrote"):
        load(fresh(), tmp_path / "other.safetensors")
    with pytest.raises(ValueError, match="not converted"):
        save(fresh(), tmp_path / "none.safetensors")
    with pytest.raises(ValueError, match=r"has no module 'attention\.1'"):
        rebuild(Blocks(layers=1), description(converted))
    with pytest.raises(ValueError, match="version 7"):
        rebuild(fresh(), {**description(converted), "version": 7})
