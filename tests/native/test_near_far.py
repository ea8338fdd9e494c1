"""Near-far attention on the compiled kernel: what the contract does not look at."""

import pytest
import torch
from torch import Tensor, nn

from lln.near_far import near_far_attention
from lln.ops.near_far import Operands, native, near_far
from tests.ops.test_near_far_contract import Reach, stress, widened

either_direction = pytest.mark.parametrize("causal", [False, True], ids=["bidirectional", "causal"])
WIDE = Reach(neighbours=1, first_tokens=4)
NAMES = near_far.differentiable


def forward_and_backward(x: Operands, grad: Tensor) -> list[Tensor]:
    results = native.forward(x)
    found = native.backward({"out": grad}, results, x, set(NAMES))
    return [results.out, *(found[name] for name in NAMES)]


@either_direction
def test_the_number_of_threads_changes_no_bit(isa: str, threads: None, causal: bool) -> None:
    x = stress(causal, WIDE)
    grad = torch.randn_like(x.q)[..., : x.v.shape[3]]
    results = []
    for number in (1, 2, 3):
        torch.set_num_threads(number)
        results.append(forward_and_backward(x, grad))
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


@either_direction
def test_blocks_whose_moments_do_not_fit_into_memory_are_summed_again(causal: bool) -> None:
    """A block of one key of 64 features has moments of 41 kB; 8 MB of them are held."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = torch.randn(3, 1, 1, 460, 64, generator=generator).unbind(0)
    scale = torch.ones(1, 1, 64)
    x = Operands(q, k, v, scale, scale, None, torch.full((1, 1, 4), 0.5), None, None, 2, 0, 0, 0.125, causal)
    assert 460 // 2 > 2**21 // (2 * 64 * 80)  # more blocks than are held
    leaves = [t.double().requires_grad_() for t in (q, k, v)]
    expected = near_far(widened(x)._replace(q=leaves[0], k=leaves[1], v=leaves[2]), "oracle").out
    gradients = torch.autograd.grad(expected.square().sum(), leaves)
    found = native.forward(x).out
    torch.testing.assert_close(found, expected.detach().float(), atol=2e-6, rtol=1e-5)
    backward = native.backward({"out": 2 * found}, native.Results(found), x, {"q", "k", "v"})
    for name, gradient in zip("qkv", gradients, strict=True):
        torch.testing.assert_close(backward[name], gradient.float(), atol=2e-5, rtol=1e-4)


@either_direction
def test_queries_without_a_gradient_may_hold_anything(causal: bool) -> None:
    x = stress(causal, WIDE)
    grad = torch.randn_like(x.q)[..., : x.v.shape[3]]
    grad[:, :, 60:70] = 0
    clean = forward_and_backward(x, grad)
    broken = x._replace(q=x.q.clone())
    broken.q[:, :, 60:70] = torch.nan
    found = forward_and_backward(broken, grad)
    assert all(torch.equal(a, b) for a, b in zip(clean[1:], found[1:], strict=True))


@either_direction
@pytest.mark.parametrize("packed", [False, True])
def test_the_operator_keeps_torch_s_rules(causal: bool, packed: bool) -> None:
    x = stress(causal, WIDE, batch=1, queries=40, keys=40)
    if packed:
        x = x._replace(cu_seqlens=torch.tensor([0, 40]))
    x = x._replace(**{n: getattr(x, n).requires_grad_() for n in NAMES})
    torch.library.opcheck(torch.ops.lln.near_far.default, (*x, "native"))


def test_compiled_and_exported_graphs_run_on_it() -> None:
    q, k, v = torch.randn(3, 1, 2, 90, 16).unbind(0)

    class Module(nn.Module):
        def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return near_far_attention(q, k, v, 1.0, 1.0, block_size=16, backend="native")

    expected = near_far_attention(q, k, v, 1.0, 1.0, block_size=16, backend="native")
    assert torch.equal(torch.compile(Module(), backend="aot_eager", fullgraph=True)(q, k, v), expected)
    assert torch.equal(torch.export.export(Module(), (q, k, v)).module()(q, k, v), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_step_by_the_kernel_is_a_step_by_plain_torch(isa: str, dtype: torch.dtype) -> None:
    q, k, v = torch.randn(3, 2, 4, 100, 16).to(dtype).unbind(0)
    k, v = k[:, :2], v[:, :2]
    options = {"alpha": 1.0, "beta": 1.0, "block_size": 16, "neighbours": 1, "first_tokens": 4, "is_causal": True}
    _, state = near_far_attention(q, k, v, **options, return_state=True)
    token = [torch.randn(2, heads, 1, 16).to(dtype) for heads in (4, 2, 2)]
    with torch.no_grad():
        found, after = near_far_attention(*token, **options, state=state, return_state=True)
    by_torch = [t.requires_grad_() for t in token]
    expected, plain_after = near_far_attention(*by_torch, **options, state=state, return_state=True)
    assert expected.requires_grad and not found.requires_grad
    torch.testing.assert_close(
        found, expected.detach(), atol=2 * torch.finfo(dtype).eps, rtol=2 * torch.finfo(dtype).eps
    )
    for name, t in after.state_dict().items():
        assert torch.equal(t, plain_after.state_dict()[name]), name
