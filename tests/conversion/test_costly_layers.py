"""keep_softmax="auto": the layers whose conversion alone costs the output most keep softmax."""

from pathlib import Path

import pytest
import torch

pytest.importorskip("safetensors")

import lln
from lln.conversion import converted_sites, load, save, softmax_again
from lln.conversion.errors import relative_error
from tests.conversion.models import Blocks, TwoInOne, batches

DATA = batches()


def uneven(sharp: int = 1) -> Blocks:
    """Of three layers, one whose attention is so sharp that a linear one misses it."""
    torch.manual_seed(3)
    model = Blocks(layers=3).eval()
    model.attention[sharp].qkv.weight.data[:64] *= 6
    return model


@torch.no_grad()
def error(model: torch.nn.Module) -> float:
    with softmax_again(model):
        wanted = model(DATA[0])
    return float(relative_error(model(DATA[0]), wanted))


@pytest.mark.parametrize("sharp", [0, 2])
def test_the_costliest_layer_keeps_softmax(sharp: int, tmp_path: Path) -> None:
    model = uneven(sharp)
    report = lln.convert(model, DATA, block_size=16, keep_softmax="auto")
    kept = f"attention.{sharp}"
    assert list(report.kept) == [kept] and "costliest" in report.kept[kept] and kept not in report.replaced
    assert set(converted_sites(model)) == {f"attention.{i}" for i in range(3) if i != sharp}
    by_name, whole = uneven(sharp), uneven(sharp)
    lln.convert(by_name, DATA, block_size=16, keep_softmax=[kept])
    lln.convert(whole, DATA, block_size=16)
    assert torch.equal(model(DATA[0]), by_name(DATA[0]))
    assert error(model) < 0.5 * error(whole)
    again = load(uneven(sharp), save(model, tmp_path / "auto.safetensors"))
    assert torch.equal(again(DATA[0]), model(DATA[0]))
    assert torch.equal(lln.unload(model)(DATA[0]), uneven(sharp)(DATA[0]))


def test_as_many_as_asked_for_and_of_members_too() -> None:
    report = lln.convert(uneven(), DATA, attention="elu", keep_softmax="auto", softmax_layers=2)
    assert len(report.kept) == 2 and "attention.1" in report.kept and len(report.replaced) == 1


def test_both_calls_of_a_module_go_together() -> None:
    model, context = torch.nn.ModuleList([TwoInOne(), TwoInOne()]).eval(), torch.randn(3, 50, 32)

    def run(pair: torch.nn.Module) -> torch.Tensor:
        first, second = pair  # type: ignore[misc]
        out: torch.Tensor = second(first(DATA[0], context), context)
        return out

    report = lln.convert(model, run, block_size=16, keep_softmax="auto")
    (place,) = {name.split(" ")[0] for name in report.kept}
    assert list(report.kept) == [place, f"{place} (call 2)"] and len(report.replaced) == 2


def silent(model: torch.nn.Module) -> None:
    model(DATA[0])


def test_what_does_not_fit_is_refused_and_the_model_is_as_it_was() -> None:
    model = uneven()
    with pytest.raises(
        ValueError, match=r"keep_softmax must be 'auto' or a list of names of modules, got 'attention\.0'"
    ):
        lln.convert(model, DATA, keep_softmax="attention.0")
    with pytest.raises(ValueError, match="give both, or neither"):
        lln.convert(model, DATA, softmax_layers=1)
    with pytest.raises(ValueError, match="leave a layer to convert, of which there are 3, got 3"):
        lln.convert(model, DATA, block_size=16, keep_softmax="auto", softmax_layers=3)
    with pytest.raises(ValueError, match="a function that returns what the model returned"):
        lln.convert(model, silent, block_size=16, keep_softmax="auto")
    assert not converted_sites(model) and torch.equal(model(DATA[0]), uneven()(DATA[0]))
