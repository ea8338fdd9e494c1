"""What torch asks of an operator, with the Triton kernels behind it: tracing, export, vmap and autocast.

Run by `test_contract` in a process under Triton's interpreter, on CPU tensors. How a graph is compiled for a GPU is not seen
here; what is traced for one is, on tensors of a card that hold nothing.
"""

import os
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="run by test_contract in a process under Triton's interpreter"
)

import lln  # noqa: E402
from lln.near_far import near_far_attention  # noqa: E402
from lln.ops.blocks import blocks  # noqa: E402
from lln.ops.diag import diag  # noqa: E402
from lln.ops.lln import attention  # noqa: E402
from lln.ops.near_far import near_far  # noqa: E402
from tests.gpu.test_launches import of_blocks, of_diag, of_near_far, operands  # noqa: E402

OPERATIONS = {
    "attention": (attention, lambda x: x),
    "blocks": (blocks, of_blocks),
    "diag": (diag, of_diag),
    "near_far": (near_far, of_near_far),
}
FUNCTIONS: dict[str, Any] = {
    "lln": lambda q, k, v: lln.lln_attention(q, k, v, 1.2, 0.9, backend="triton"),
    "blocks": lambda q, k, v: lln.block_diagonal_attention(q, k, v, block_size=16, backend="triton"),
    "diag": lambda q, k, v: lln.lln_diag_attention(q, k, v, 1.2, 0.9, block_size=16, is_causal=True, backend="triton"),
    "near_far": lambda q, k, v: near_far_attention(q, k, v, 1.2, 0.9, block_size=8, is_causal=True, backend="triton"),
    "matched": lambda q, k, v: lln.lln_attention(q, k, v, backend="triton"),
}
every_function = pytest.mark.parametrize("name", FUNCTIONS)


def inputs(length: int = 20, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    generator = torch.Generator().manual_seed(length)
    return [
        torch.randn(1, heads, length, 16, generator=generator).to(dtype).requires_grad_() for heads in (2, 1, 1)
    ]  # fmt: skip


@pytest.mark.parametrize("causal", [False, True], ids=["bidirectional", "causal"])
@pytest.mark.parametrize("name", OPERATIONS)
def test_graphs_are_promised_what_the_kernels_give(name: str, causal: bool) -> None:
    """Shapes, dtypes, strides and devices of all results and gradients, as traced and as computed."""
    operation, of = OPERATIONS[name]
    x = of(operands("masked", causal, 20))
    leaves = {f: getattr(x, f).detach().requires_grad_() for f in operation.differentiable if getattr(x, f) is not None}
    given = (*x._replace(**leaves), "triton")
    torch.library.opcheck(
        getattr(torch.ops.lln, operation.name).default, given,
        test_utils=("test_schema", "test_autograd_registration", "test_faketensor"),
    )  # fmt: skip


@every_function
def test_graphs_have_no_break_and_the_same_gradients(name: str) -> None:
    torch.compiler.reset()
    call = FUNCTIONS[name]
    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    given = inputs()
    out, expected = compiled(*given), call(*given)
    assert torch.equal(out, expected)
    pairs = [torch.autograd.grad(o.square().sum(), given) for o in (out, expected)]
    for actual, true in zip(*pairs, strict=True):
        assert torch.equal(actual, true)


class Attends(nn.Module):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.call = FUNCTIONS[name]

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        found: Tensor = self.call(q, k, v)
        return found


@every_function
def test_graphs_are_exported_for_any_length(name: str) -> None:
    length = torch.export.Dim("length", min=2, max=4096)
    given = [x.detach() for x in inputs()]
    program = torch.export.export(Attends(name), tuple(given), dynamic_shapes=({2: length},) * 3)
    other = [x.detach() for x in inputs(23)]
    assert torch.equal(program.module()(*other), FUNCTIONS[name](*other))


class Operates(nn.Module):
    def __init__(self, name: str, x: Any) -> None:
        super().__init__()
        self.operation, self.x = OPERATIONS[name][0], x

    def forward(self, **tensors: Tensor) -> Tensor:
        found: Tensor = self.operation(self.x._replace(**tensors), "triton").out
        return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", OPERATIONS)
def test_graphs_are_traced_for_a_card_that_is_not_here(name: str, dtype: torch.dtype) -> None:
    """The operations: torch's build for the CPU cannot index a tensor of a card, as the functions above them do."""
    x = OPERATIONS[name][1](operands("masked", True, 20))
    dtypes = {"q": dtype, "k": dtype, "v": dtype}
    with FakeTensorMode():
        given = {
            f: torch.empty(t.shape, dtype=dtypes.get(f, t.dtype), device="cuda")
            for f, t in x._asdict().items()
            if isinstance(t, Tensor)
        }
    program = torch.export.export(Operates(name, x), (), given)
    (called,) = (n for n in program.graph.nodes if str(n.target).startswith("lln."))
    assert called.args[-1] == "triton"
    (out,) = (n for n in program.graph.nodes if n.op == "output")
    found = out.args[0][0].meta["val"]
    assert found.device.type == "cuda" and found.dtype == dtype and found.shape == x.q.shape


@every_function
def test_graphs_of_vmap_fold_into_the_batch(name: str) -> None:
    given = [torch.stack([x.detach(), -x.detach(), 0.5 * x.detach()]) for x in inputs(9)]
    found = torch.vmap(FUNCTIONS[name])(*given)
    for i, out in enumerate(found):
        assert torch.equal(out, FUNCTIONS[name](*(x[i] for x in given)))


@every_function
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_graphs_under_autocast_have_its_dtype(name: str, dtype: torch.dtype) -> None:
    """As on the CPU: q, k and v come in autocast's dtype, and gradients in their own."""
    given = inputs()
    with torch.autocast("cpu", dtype=dtype):
        out = FUNCTIONS[name](*given)
    assert out.dtype == dtype
    assert torch.equal(out, FUNCTIONS[name](*(x.detach().to(dtype) for x in given)))
    for grad in torch.autograd.grad(out.float().square().sum(), given):
        assert grad.dtype == torch.float32 and bool(grad.isfinite().all())
