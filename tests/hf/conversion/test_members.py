"""Members of the zoo through the door of lln.hf.convert, and those with weights through lln.convert."""

from pathlib import Path

import pytest
import torch

import lln
import lln.hf
from lln.conversion import distil, load, save
from tests.hf.models import inputs, make, output


@pytest.mark.parametrize(("family", "name"), [("bert", "performer"), ("llama", "elu")])
def test_a_member_without_weights_is_used_saved_and_given_back(family: str, name: str, tmp_path: Path) -> None:
    model, given = make(family, "sdpa"), inputs(family)
    with torch.no_grad():
        wanted = output(model, **given)
        assert lln.hf.convert(model, name) is model
        found = output(model, **given)
        assert not torch.allclose(found, wanted) and torch.equal(found, output(make(family, name), **given))
        model.save_pretrained(tmp_path)
        again = type(model).from_pretrained(tmp_path)
        assert again.config._attn_implementation == name and torch.equal(output(again.eval(), **given), found)
        assert torch.equal(output(lln.hf.unload(model), **given), wanted)


@pytest.mark.parametrize("family", ["bert", "llama"])
def test_a_member_with_weights_goes_into_the_modules(family: str, tmp_path: Path) -> None:
    model, given = make(family, "sdpa"), inputs(family, length=40)
    with pytest.raises(ValueError, match=r"which save_pretrained would lose: .* attention='hedgehog'\)"):
        lln.hf.convert(model, "hedgehog", [given])
    report = lln.convert(model, [given], attention="hedgehog")
    assert len(report.replaced) == 2 and not report.kept
    distil(model, [given], steps=2, stage="layers")
    again = load(make(family, "sdpa"), save(model, tmp_path / "hedgehog.safetensors"))
    with torch.no_grad():
        found = output(model, **given)
        assert torch.equal(output(again, **given), found)
        assert torch.equal(output(lln.unload(model), **given), output(make(family, "sdpa"), **given))


@pytest.mark.parametrize(
    ("family", "name", "options", "message"),
    [
        ("llama", "nystromformer", {}, r"layers\.0\.self_attn: nystromformer has no causal form"),
        ("bert", "reformer", {}, "one projection for queries and keys"),
        ("bert", "performer", {"block_size": 8, "calibrate": [1]}, "leave out calibrate, block_size"),
        ("bert", "nobody", {}, "attention must be one of 'lln', .*'performer'.* got 'nobody'"),
    ],
)
def test_what_does_not_fit_is_refused(family: str, name: str, options: dict[str, object], message: str) -> None:
    model = make(family, "sdpa")
    with pytest.raises(ValueError, match=message):
        lln.hf.convert(model, name, **options)  # type: ignore[arg-type]
    assert model.config._attn_implementation == "sdpa"
