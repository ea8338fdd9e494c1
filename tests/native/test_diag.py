"""LLN+Diag on the compiled kernel: what its branches do to each other's rows, and what must not change a bit."""

import pytest
import torch
from torch import Tensor

from lln.ops import diag
from lln.ops.diag import native
from lln.ops.native.call import run

WANTED = set(diag.diag.differentiable)


def random_operands(
    causal: bool = False, by_row: bool = True, left_padding: int = 0, dtype: torch.dtype = torch.float32
) -> diag.Operands:
    generator = torch.Generator().manual_seed(5)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator).to(dtype)

    q, k, v = normal(2, 4, 150, 17), normal(2, 2, 150, 17), normal(2, 2, 150, 9)
    weight = torch.rand(2, 4, 150 if by_row else 1, generator=generator)
    mask = (torch.arange(150) >= left_padding).expand(2, -1) if left_padding else None
    alpha, beta = torch.full((2, 4, 17), 0.7), torch.full((2, 2, 17), 0.8)
    return diag.Operands(
        q, k, v, None, None, alpha, beta, None, weight, mask, None, 64, 0.3, causal, keep_branch=True
    )  # fmt: skip


def gradients(x: diag.Operands, grad: Tensor) -> dict[str, Tensor]:
    return native.backward({"out": grad}, native.forward(x), x, WANTED)


def upstream(x: diag.Operands) -> Tensor:
    return torch.randn(*x.q.shape[:3], x.v.shape[3], generator=torch.Generator().manual_seed(6)).to(x.q.dtype)


def assert_same_bits(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert [n for n in expected if not torch.equal(found[n], expected[n])] == []


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("causal", [False, True])
def test_the_output_has_the_same_bits_whether_or_not_the_branch_is_kept(
    isa: str, causal: bool, dtype: torch.dtype
) -> None:
    x = random_operands(causal, left_padding=10, dtype=dtype)
    kept, in_place = native.forward(x), native.forward(x._replace(keep_branch=False))
    assert torch.equal(kept.out, in_place.out)
    assert in_place.lln_out.numel() == 0


@pytest.mark.parametrize("causal", [False, True])
def test_the_number_of_threads_changes_no_bit(isa: str, threads: None, causal: bool) -> None:
    x = random_operands(causal)
    grad, found = upstream(x), []
    for number in (1, 3):
        torch.set_num_threads(number)
        found.append({"out": native.forward(x).out, **gradients(x, grad)})
    assert_same_bits(found[1], found[0])


@pytest.mark.parametrize("causal", [False, True])
def test_one_weight_of_a_head_is_that_weight_in_each_of_its_rows(isa: str, causal: bool) -> None:
    x = random_operands(causal, by_row=False)
    each = x._replace(weight=x.weight.expand(-1, -1, 150).contiguous())
    assert torch.equal(native.forward(x).out, native.forward(each).out)
    of_head, of_rows = gradients(x, upstream(x)), gradients(each, upstream(x))
    torch.testing.assert_close(of_head.pop("weight"), of_rows.pop("weight").sum(dim=-1, keepdim=True))
    assert_same_bits(of_head, of_rows)


@pytest.mark.parametrize("causal", [False, True])
def test_rows_before_the_first_block_have_the_other_branch_alone(isa: str, causal: bool) -> None:
    x = random_operands(causal, left_padding=20)
    results, grad = native.forward(x), upstream(x)
    outside = slice(0, 20)
    far = results.lln_out[:, :, outside]
    torch.testing.assert_close(results.out[:, :, outside], far * x.weight[:, :, outside, None])
    found = native.backward({"out": grad}, results, x, WANTED)["weight"]
    torch.testing.assert_close(found[:, :, outside], (grad[:, :, outside] * far).sum(dim=-1))


@pytest.mark.parametrize("weight", [0.0, 1.0])
def test_at_either_end_of_the_weight_one_branch_has_all_of_the_gradient(isa: str, weight: float) -> None:
    x = random_operands()
    x = x._replace(weight=torch.full_like(x.weight, weight))
    lln_out = native.forward(x).lln_out
    found = gradients(x, upstream(x))
    parts = {n: getattr(x, n).double().requires_grad_() for n in ("q", "k", "v")}
    wide = x._replace(**parts, alpha=x.alpha.double(), beta=x.beta.double(), weight=x.weight.double())
    out = diag.diag(wide, "oracle").out
    expected = torch.autograd.grad(out, list(parts.values()), upstream(x).double())
    for name, true in zip(parts, expected, strict=True):
        torch.testing.assert_close(found[name].double(), true, rtol=1e-4, atol=1e-5)
    assert torch.equal(native.forward(x).out, lln_out) or weight == 0


def test_a_query_whose_weight_is_all_of_the_other_branch_reaches_no_gradient_of_the_blocks(isa: str) -> None:
    x = random_operands()
    x.weight[:, :, 70] = 1
    far = {"lln_q": x.q.clone(), "lln_k": x.k.clone()}
    expected = gradients(x._replace(**far), upstream(x))
    x.q[:, :, 70] = torch.nan
    found = gradients(x._replace(**far), upstream(x))
    del found["weight"], expected["weight"]  # that of the row is grad . (far - near), and near is NaN
    assert_same_bits(found, expected)


def test_a_row_without_a_gradient_may_hold_anything(isa: str) -> None:
    x = random_operands()
    grad = upstream(x)
    grad[:, :, 70] = 0
    expected = gradients(x, grad)
    x.q[:, :, 70] = torch.nan
    assert_same_bits(gradients(x, grad), expected)


def _fields(x: diag.Operands) -> dict[str, Tensor | float]:
    """What both passes are called with, but for the weight and what they write."""
    state = {"maximum": torch.zeros(2, 2, 17), "summed": torch.zeros(2, 2, 17, 9), "normaliser": torch.ones(2, 2, 17)}
    return {"q": x.q, "k": x.k, "v": x.v, "alpha": x.alpha, "beta": x.beta, "block_size": 64, "scale": 0.3, **state}


def _gradients(x: diag.Operands) -> dict[str, Tensor]:
    return {"grad": torch.zeros(2, 4, 150, 9), "dq": x.q.clone(), "dk": x.k.clone(), "dv": x.v.clone()}


def test_the_branch_by_itself_may_not_lie_across_the_output() -> None:
    x = random_operands()
    memory = torch.zeros(2, 4, 151, 9)
    for across in (memory[:, :, :-1], memory[:, :, 1:]):
        with pytest.raises(ValueError, match="lln_out may not lie across out"):
            run("diag_forward", **_fields(x), weight=x.weight, out=memory[:, :, 1:], lln_out=across)


def test_a_mixture_that_lacks_a_part_is_refused_in_words() -> None:
    x = random_operands()
    out = torch.zeros(2, 4, 150, 9)
    for fields, message in (
        ({}, "weight is missing"),
        ({"weight": x.weight, "lln_q": x.q}, "k is missing"),
        ({"weight": x.weight, "lln_k": x.k}, "lln_q and lln_k go together"),
        ({"weight": x.weight, "lln_q": x.q[:, :, 1:], "lln_k": x.k}, "out must have shape"),
    ):
        with pytest.raises(ValueError, match=message):
            run("diag_forward", **_fields(x), **fields, out=out)
    with pytest.raises(ValueError, match="dweight needs lln_out"):
        run("diag_backward", **_fields(x), **_gradients(x), weight=x.weight, dweight=torch.zeros(2, 4, 150))


@pytest.mark.parametrize(
    "weight, message",
    [
        (torch.ones(2, 4, 7), r"weight must have shape \(2, 4, 1\), got \(2, 4, 7\)"),
        (torch.ones(2, 4), "weight must be 3-D, got 2-D"),
        (torch.ones(2, 4, 1).half(), "weight must be float32, got float16"),
    ],
)
def test_weights_of_another_form_are_refused_in_words(weight: Tensor, message: str) -> None:
    x = random_operands()
    with pytest.raises(ValueError, match=message):
        run("diag_forward", **_fields(x), weight=weight, out=torch.zeros(2, 4, 150, 9))
    with pytest.raises(ValueError, match=message):
        run("diag_backward", **_fields(x), weight=weight, **_gradients(x))
