"""Members of the zoo through the same door: replaced, measured, saved, taken back, or refused in words."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import lln
from lln import zoo
from lln.conversion import load, save
from tests.conversion.models import Blocks, TwoInOne, batches


def fresh(causal: bool = False) -> Blocks:
    torch.manual_seed(3)
    return Blocks(causal=causal).eval()


@pytest.mark.parametrize("name", ["hedgehog", "lln_diag", "performer", "elu", "linformer"])
def test_a_member_takes_the_place_of_softmax_and_gives_it_back(name: str, tmp_path: Path) -> None:
    model, x = fresh(), batches()[0]
    report = lln.convert(model, batches(), attention=name)
    assert set(report.replaced) == {"attention.0", "attention.1"} and all(e > 0 for e in report.replaced.values() if e)
    out = model(x)
    assert out.isfinite().all() and not torch.allclose(out, fresh()(x))
    again = load(fresh(), save(model, tmp_path / "member.safetensors"))
    assert torch.equal(again(x), out)  # random features and weights come back as they were
    assert torch.equal(lln.unload(model)(x), fresh()(x))


@torch.no_grad()
def test_the_report_has_the_error_of_what_runs() -> None:
    model, x = fresh(), batches(1)[0]
    report = lln.convert(model, [x], attention="elu")
    projected = model.attention[0].qkv(F.layer_norm(x, (32,)))
    q, k, v = projected.unflatten(-1, (3, 4, -1)).permute(2, 0, 3, 1, 4)
    softmax, elu = F.scaled_dot_product_attention(q, k, v), zoo.attention("elu")(q, k, v)
    expected = float((elu - softmax).square().sum() / softmax.square().sum())
    assert report.replaced["attention.0"] == pytest.approx(expected, rel=1e-5)


def test_a_member_without_a_causal_form_leaves_softmax_where_it_would_need_one() -> None:
    with pytest.raises(ValueError, match="linformer has no causal form"):
        lln.convert(fresh(causal=True), batches(), attention="linformer")


@pytest.mark.parametrize(("name", "both"), [("hedgehog", True), ("block_diagonal", False)])
def test_cross_attention_goes_to_members_that_have_it(name: str, both: bool) -> None:
    model = Wrapped()
    report = lln.convert(model, [(torch.randn(2, 40, 32), torch.randn(2, 24, 32))], attention=name)
    assert len(report.replaced) == (2 if both else 1)
    assert both or "no cross-attention" in report.kept["inner (call 2)"]


class Wrapped(torch.nn.Module):
    """A module is found by the path of whoever holds it."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = TwoInOne()

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        out: Tensor = self.inner(x, context)
        return out


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("flash", "flash is a whole layer .* of the zoo: .*hedgehog"),
        ("reformer", "one projection for queries and keys"),
        ("polaformer", "reads the layer's inputs"),
        ("softmax", "is what the model has"),
        ("unheard_of", "no member 'unheard_of'"),
    ],
)
def test_what_cannot_stand_in_is_refused_with_what_can(name: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        lln.convert(fresh(), batches(), attention=name)


def test_arguments_of_another_attention_are_refused() -> None:
    with pytest.raises(ValueError, match="block_size, neighbours and first_tokens are of lln_near_far"):
        lln.convert(fresh(), batches(), attention="hedgehog", block_size=16)
    with pytest.raises(ValueError, match="options are of a member"):
        lln.convert(fresh(), batches(), options={"form": "kernel"})
    with pytest.raises(TypeError, match="attention='hedgehog'"):
        lln.convert(fresh(), "hedgehog")
