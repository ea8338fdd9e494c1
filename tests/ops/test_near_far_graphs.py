"""Near-far attention under torch.compile, torch.export, torch.func, forward mode, vmap and autocast."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lln.near_far import near_far_attention
from lln.ops.near_far import Operands, near_far

NAMES = near_far.differentiable


def operands() -> Operands:
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    q, k, v = normal(2, 4, 50, 6), normal(2, 2, 50, 6), normal(2, 2, 50, 5)
    alpha, beta, bias = normal(2, 4, 6), normal(2, 2, 6), normal(2, 4, 6)
    return Operands(q, k, v, alpha, beta, bias, normal(2, 4, 4), None, None, 8, 1, 3, 0.4, False)


def squares(*tensors: Tensor) -> Tensor:
    return near_far(operands()._replace(**dict(zip(NAMES, tensors, strict=True)))).out.square().sum()


def leaves() -> list[Tensor]:
    return [getattr(operands(), n).requires_grad_() for n in NAMES]


def gradients() -> tuple[Tensor, ...]:
    given = leaves()
    return torch.autograd.grad(squares(*given), given)


def test_a_compiled_graph_has_the_same_gradients() -> None:
    given, x = leaves(), operands()

    def compiled(*tensors: Tensor) -> Tensor:
        return near_far(x._replace(**dict(zip(NAMES, tensors, strict=True)))).out.square().sum()

    found = torch.autograd.grad(torch.compile(compiled, backend="aot_eager", fullgraph=True)(*given), given)
    for name, a, b in zip(NAMES, found, gradients(), strict=True):
        torch.testing.assert_close(a, b, msg=lambda m, name=name: f"{name}: {m}")


def test_it_can_be_exported() -> None:
    x = operands()

    class Module(nn.Module):
        def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return near_far(x._replace(q=q, k=k, v=v)).out

    exported = torch.export.export(Module(), (x.q, x.k, x.v)).module()
    assert torch.equal(exported(x.q, x.k, x.v), near_far(x).out)


def test_torch_func_and_forward_mode_agree_with_autograd() -> None:
    given = tuple(t.detach() for t in leaves())
    found = torch.func.grad(squares, argnums=tuple(range(len(NAMES))))(*given)
    for a, b in zip(found, gradients(), strict=True):
        torch.testing.assert_close(a, b)
    _, tangent = torch.func.jvp(squares, given, tuple(torch.ones_like(t) for t in given))
    torch.testing.assert_close(tangent, sum(g.sum() for g in gradients()))


def test_vmap_is_a_loop() -> None:
    x = operands()
    q = torch.stack([x.q, -x.q, 2 * x.q])
    found = torch.vmap(lambda one: near_far(x._replace(q=one)).out)(q)
    for one, out in zip(q, found, strict=True):
        torch.testing.assert_close(out, near_far(x._replace(q=one)).out)


def test_gradients_may_be_differentiated_again() -> None:
    given = leaves()
    first = torch.autograd.grad(squares(*given), given, create_graph=True)
    again = torch.autograd.grad(sum(g.sum() for g in first), given)  # type: ignore[arg-type]
    true = leaves()
    out = near_far(operands()._replace(**dict(zip(NAMES, true, strict=True))), "oracle").out.square().sum()
    once = torch.autograd.grad(out, true, create_graph=True)
    for a, b in zip(again, torch.autograd.grad(sum(g.sum() for g in once), true), strict=True):  # type: ignore[arg-type]
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_under_autocast_inputs_come_in_its_dtype_and_sums_stay_wide(dtype: torch.dtype) -> None:
    q, k, v = torch.randn(3, 1, 2, 70, 8).unbind(0)
    options: dict[str, Any] = {"alpha": 1.0, "beta": 1.0, "block_size": 16}
    with torch.autocast("cpu", dtype=dtype):
        found = near_far_attention(q, k, v, **options)
    expected = near_far_attention(q.to(dtype), k.to(dtype), v.to(dtype), **options)
    assert found.dtype == dtype and torch.equal(found, expected)
