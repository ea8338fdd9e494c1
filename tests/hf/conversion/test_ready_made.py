"""A conversion in a file of its own: it makes the same model, belongs to one set of weights, and is undone bit for bit."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from lln.hf import convert, save_conversion, unload
from lln.hf.conversion.folding import fold_into_projections
from lln.hf.conversion.ready_made import write_conversion
from lln.hf.modules import named_attention_modules
from tests.hf.models import inputs, make, output


def softmax_model(family: str) -> Any:
    model = make(family, "sdpa")
    del model.config.lln
    return model


def trained(base: Any, family: str, attention: str, rank: int | None) -> Any:
    """Converted from a copy, with the query projections changed as training would: by something of that rank."""
    model = convert(copy.deepcopy(base), attention, [inputs(family, length=40)], block_size=8)
    with torch.no_grad():
        for name, x in model.named_parameters():
            if "query.weight" in name or "q_proj.weight" in name:
                x += 0.1 * (
                    torch.randn_like(x) if rank is None else torch.randn(len(x), rank) @ torch.randn(rank, x.shape[1])
                )
    return model


@pytest.mark.parametrize("rank", [None, 2])
@pytest.mark.parametrize("family, attention", [("bert", "lln_near_far"), ("llama", "lln_diag")])
def test_the_file_makes_the_model_again(family: str, attention: str, rank: int | None, tmp_path: Path) -> None:
    base = softmax_model(family)
    model, given = trained(base, family, attention, rank), inputs(family, length=40)
    file = save_conversion(model, base, tmp_path / "c.safetensors", precision="float32", rank=rank)
    again = convert(copy.deepcopy(base), weights=file)
    assert again.config.lln == model.config.lln and again.config._attn_implementation == attention
    torch.testing.assert_close(output(again, **given), output(model, **given), rtol=1e-4, atol=1e-5)
    restored = unload(again)
    assert all(
        torch.equal(x, y) for x, y in zip(restored.state_dict().values(), base.state_dict().values(), strict=True)
    )


def test_half_precision_and_low_rank_make_it_smaller(tmp_path: Path) -> None:
    base = softmax_model("bert")
    model = trained(base, "bert", "lln_diag", rank=2)
    sizes = [
        sum(
            x.nbytes
            for name, x in load_file(save_conversion(model, base, tmp_path / "c", **options)).items()
            if ":" in name
        )
        for options in ({"precision": "float32"}, {"precision": "float16"}, {"precision": "float16", "rank": 2})
    ]
    whole = sum(x.nbytes for name, x in base.state_dict().items() if "query.weight" in name)
    assert sizes == [whole, whole // 2, whole // 2 * (2 * 64) // 1024]


def test_other_weights_are_refused_and_left_alone(tmp_path: Path) -> None:
    base = softmax_model("bert")
    file = save_conversion(trained(base, "bert", "lln_diag", None), base, tmp_path / "c.safetensors")
    other = softmax_model("bert")
    with torch.no_grad():
        other.embeddings.word_embeddings.weight[0, 0] += 1e-3
    before = copy.deepcopy(other.state_dict())
    with pytest.raises(ValueError, match="made for other weights"):
        convert(other, weights=file)
    assert not hasattr(other.config, "lln") and other.state_dict().keys() == before.keys()
    with pytest.raises(ValueError, match="give one of them"):
        convert(base, weights=file, calibrate=[inputs("bert")])


def test_a_file_without_what_it_describes_is_refused(tmp_path: Path) -> None:
    from safetensors import safe_open

    base = softmax_model("bert")
    file = save_conversion(trained(base, "bert", "lln_diag", None), base, tmp_path / "c.safetensors")
    tensors = load_file(file)
    with safe_open(file, framework="pt") as opened:
        metadata = opened.metadata()
    missing = next(name for name in tensors if name.endswith("lln.alpha"))
    save_file({name: x for name, x in tensors.items() if name != missing}, tmp_path / "less", metadata)
    with pytest.raises(ValueError, match=rf"does not hold what it describes: {missing}"):
        convert(base, weights=tmp_path / "less")
    assert "lln" not in " ".join(base.state_dict()) and convert(base, weights=file) is base


def test_what_is_no_conversion_is_refused(tmp_path: Path) -> None:
    base = softmax_model("bert")
    with pytest.raises(ValueError, match="not converted"):
        save_conversion(base, base, tmp_path / "c")
    (tmp_path / "text").write_text("no numbers")
    with pytest.raises(ValueError, match="damaged or not a safetensors file"):
        convert(base, weights=tmp_path / "text")
    with pytest.raises(FileNotFoundError):
        convert(base, weights=tmp_path / "nowhere")


def test_a_map_in_the_file_is_folded_into_the_projections(tmp_path: Path) -> None:
    base = softmax_model("bert")
    model, given = trained(base, "bert", "lln_diag", 2), inputs("bert", length=40)
    factors = load_file(save_conversion(model, base, tmp_path / "c", precision="float32", rank=2))
    name = next(iter(named_attention_modules(base)))
    matrix = torch.eye(8) + 0.1 * torch.randn(4, 8, 8)
    file = write_conversion(tmp_path / "c", base, [model.config.lln], factors | {f"map:{name}": matrix})
    fold_into_projections(model.get_submodule(name), matrix.double())
    made = convert(copy.deepcopy(base), weights=file)
    torch.testing.assert_close(output(made, **given), output(model, **given), rtol=1e-4, atol=1e-5)
    before = output(base, **given)
    unload(made)
    assert torch.equal(output(made, **given), before)  # the queries' and keys' biases are back, too
