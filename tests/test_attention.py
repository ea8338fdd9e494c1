"""The public functions: defaults, mixing, autocast, and what they do inside torch's machinery."""

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from lln import block_diagonal_attention, lln_attention, lln_diag_attention, match_moments
from lln.dense import lln_matrix
from lln.ops.lln import Operands, attention, oracle
from tests.ops.subjects import every_backend_name as every_backend

either_direction = pytest.mark.parametrize("causal", [False, True], ids=["bidirectional", "causal"])


def qkv(
    batch: int = 2,
    heads: int = 4,
    length: int = 70,
    dim: int = 16,
    dtype: torch.dtype = torch.float32,
    key_heads: int = 2,
) -> tuple[Tensor, Tensor, Tensor]:
    return (
        torch.randn(batch, heads, length, dim, dtype=dtype),
        torch.randn(batch, key_heads, length, dim, dtype=dtype),
        torch.randn(batch, key_heads, length, dim, dtype=dtype),
    )


def test_the_output_is_the_matrix_times_the_values() -> None:
    q, k, v = qkv(dtype=torch.float64)
    alpha, beta = match_moments(q, k)
    expected = lln_matrix(q, k, alpha, beta) @ v.repeat_interleave(2, dim=1)
    torch.testing.assert_close(lln_attention(q, k, v), expected)


def test_unmatched_scales_are_matched_from_q_and_k_without_gradient() -> None:
    q, k, v = (x.requires_grad_() for x in qkv())
    alpha, beta = match_moments(q, k)
    torch.testing.assert_close(lln_attention(q, k, v), lln_attention(q, k, v, alpha, beta))
    torch.testing.assert_close(lln_attention(q, k, v, beta=beta * 2), lln_attention(q, k, v, alpha, beta * 2))
    own = torch.autograd.grad(lln_attention(q, k, v).square().sum(), q)[0]
    given = torch.autograd.grad(lln_attention(q, k, v, alpha.detach(), beta.detach()).square().sum(), q)[0]
    torch.testing.assert_close(own, given)


def test_matching_ignores_padding_and_batch_mates() -> None:
    q, k, v = qkv()
    mask = torch.arange(70) < torch.tensor([[50], [70]])
    changed = q.clone(), k.clone()
    for x in changed:
        x[0, :, 50:] *= 100
        x[1] *= 3
    before = lln_attention(q, k, v, key_mask=mask)[0, :, :50]
    after = lln_attention(*changed, v, key_mask=mask)[0, :, :50]
    torch.testing.assert_close(before, after, atol=4e-7, rtol=0)


@pytest.mark.parametrize(
    "shape", [(), (1,), (16,), (1, 16), (4, 1, 1), (1, 4, 1, 16), (2, 1, 1, 1), (2, 4, 1, 16)], ids=str
)
def test_alpha_may_be_a_number_or_anything_that_broadcasts(shape: tuple[int, ...]) -> None:
    q, k, v = qkv()
    alpha = torch.rand(shape) + 1
    full = alpha.expand(2, 4, 1, 16).contiguous()
    torch.testing.assert_close(lln_attention(q, k, v, alpha, 1.5), lln_attention(q, k, v, full, 1.5), atol=0, rtol=0)


def test_broadcast_scales_and_bias_get_summed_gradients() -> None:
    q, k, v = qkv(dtype=torch.float64, length=12)
    alpha, beta = torch.tensor(1.5, dtype=torch.float64), torch.rand(2, 1, 1, dtype=torch.float64) + 1
    bias = torch.randn(4, 1, 16, dtype=torch.float64)
    leaves = [x.requires_grad_() for x in (alpha, beta, bias)]
    assert torch.autograd.gradcheck(
        lambda a, b, w: lln_attention(q, k, v, a, b, feature_bias=w), leaves, fast_mode=True
    )


def test_a_bias_of_minus_beta_mean_key_subtracts_the_mean_key() -> None:
    q, k, v = qkv(dtype=torch.float64)
    mean = k.mean(dim=2, keepdim=True)
    bias = (-1.5 * mean).repeat_interleave(2, dim=1)
    torch.testing.assert_close(
        lln_attention(q, k, v, 2.0, 1.5, feature_bias=bias), lln_attention(q, k - mean, v, 2.0, 1.5)
    )


@either_direction
def test_lln_diag_is_the_average_of_its_branches(causal: bool) -> None:
    q, k, v = qkv()
    lln = lln_attention(q, k, v, 2.0, 2.0, is_causal=causal)
    diag = block_diagonal_attention(q, k, v, block_size=16, is_causal=causal)
    both = lln_diag_attention(q, k, v, 2.0, 2.0, block_size=16, is_causal=causal)
    torch.testing.assert_close(both, (lln + diag) / 2)
    mix = torch.tensor([0.0, 0.25, 0.9, 1.0])
    mixed = lln_diag_attention(q, k, v, 2.0, 2.0, block_size=16, is_causal=causal, mix=mix)
    weight = mix[:, None, None]
    torch.testing.assert_close(mixed, weight * lln + (1 - weight) * diag)
    by_row = torch.rand(1, 4, q.shape[2])
    mixed = lln_diag_attention(q, k, v, 2.0, 2.0, block_size=16, is_causal=causal, mix=by_row)
    torch.testing.assert_close(mixed, by_row[..., None] * lln + (1 - by_row[..., None]) * diag)
    with pytest.raises(ValueError, match="broadcast to"):
        lln_diag_attention(q, k, v, 2.0, 2.0, mix=by_row[:, :3])


def test_the_mixing_weight_gets_a_gradient() -> None:
    q, k, v = qkv(dtype=torch.float64, length=12)
    mix = torch.tensor([0.1, 0.4, 0.5, 0.9], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(
        lambda m: lln_diag_attention(q, k, v, 2.0, 2.0, mix=m, block_size=5), mix, fast_mode=True
    )


@every_backend
@pytest.mark.parametrize("layout", ["heads first", "heads inside"])
def test_the_output_is_laid_out_as_q_is(backend: str, layout: str) -> None:
    q, k, v = qkv()
    if layout == "heads inside":
        q = q.transpose(1, 2).contiguous().transpose(1, 2)
    out = lln_attention(q, k, v, 2.0, 2.0, backend=backend)
    assert out.stride() == q.stride()


def test_autocast_casts_as_torch_does_and_float64_is_left_alone() -> None:
    q, k, v = qkv()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = lln_attention(q, k.bfloat16(), v)
        double = lln_attention(*(x.double() for x in (q, k, v)))
        both = lln_diag_attention(q, k, v)
    assert mixed.dtype == both.dtype == torch.bfloat16 and double.dtype == torch.float64
    torch.testing.assert_close(mixed, lln_attention(*(x.bfloat16() for x in (q, k, v))))


def test_float16_with_a_gradient_scaler_trains() -> None:
    torch.manual_seed(0)
    layer = torch.nn.Linear(16, 48)
    optimiser = torch.optim.Adam(layer.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)
    x, target = torch.randn(4, 50, 16), torch.randn(4, 50, 16)
    losses = []
    for _ in range(40):
        with torch.autocast("cpu", dtype=torch.float16):
            q, k, v = (y[:, None] for y in layer(x).chunk(3, dim=-1))
            out = lln_diag_attention(q, k, v, block_size=16)[:, 0]
        loss = (out.float() - target).square().mean()
        optimiser.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimiser)
        scaler.update()
        losses.append(loss.item())
    assert scaler.get_scale() >= 2.0**14, "the gradients overflowed again and again"
    assert losses[-1] < 0.9 * losses[0]


def operands(causal: bool, dtype: torch.dtype, masked: bool, packed: bool, started: bool = False) -> Operands:
    q, k, v = qkv(batch=1 if packed else 2, length=7, dim=4, dtype=dtype)
    sequences = 2  # two samples, or two packed sequences
    alpha, beta = torch.rand(sequences, 4, 4, dtype=dtype) + 1, torch.rand(sequences, 2, 4, dtype=dtype) + 1
    bias = torch.randn(sequences, 4, 4, dtype=dtype)
    for x in (q, k, v, alpha, beta, bias):
        x.requires_grad_()
    mask = torch.rand(2, 7) < 0.7 if masked else None
    edges = torch.tensor([0, 3, 7]) if packed else None
    start = (
        torch.zeros(2, 2, 4, dtype=dtype),
        torch.randn(2, 2, 4, 4, dtype=dtype),
        torch.rand(2, 2, 4, dtype=dtype) + 1,
    )
    return Operands(q, k, v, alpha, beta, bias, mask, edges, *(start if started else (None,) * 3), causal)


OPERATOR_USES = {
    "bidirectional": {"causal": False, "masked": False, "packed": False},
    "bidirectional masked": {"causal": False, "masked": True, "packed": False},
    "bidirectional packed": {"causal": False, "masked": False, "packed": True},
    "causal": {"causal": True, "masked": False, "packed": False},
    "causal from a state": {"causal": True, "masked": True, "packed": False, "started": True},
    "bidirectional with a state": {"causal": False, "masked": True, "packed": False, "started": True},
    "packed with states": {"causal": False, "masked": False, "packed": True, "started": True},
    "causal packed with states": {"causal": True, "masked": False, "packed": True, "started": True},
    "causal packed": {"causal": True, "masked": False, "packed": True},
}


def dtype_for(backend: str) -> torch.dtype:
    return torch.float32 if backend == "native" else torch.float64


@every_backend
@pytest.mark.parametrize("use", OPERATOR_USES)
def test_opcheck(backend: str, use: str) -> None:
    x = operands(dtype=dtype_for(backend), **OPERATOR_USES[use])
    torch.library.opcheck(torch.ops.lln.attention.default, (*x, backend))


@pytest.mark.parametrize("use", OPERATOR_USES)
def test_gradcheck_in_float64(use: str) -> None:
    x = operands(dtype=torch.float64, **OPERATOR_USES[use])
    names = [n for n in attention.differentiable if getattr(x, n) is not None]
    leaves = [getattr(x, n).detach().requires_grad_() for n in names]

    def results(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The output, and what the final state stands for, whatever its maximum."""
        found = attention(x._replace(**dict(zip(names, tensors, strict=True))))
        top = found.maximum.exp()
        return found.out, found.summed * top[..., None], found.normaliser * top

    assert torch.autograd.gradcheck(results, leaves, fast_mode=True)


@every_backend
@either_direction
@pytest.mark.parametrize("function", [lln_attention, lln_diag_attention])
def test_compile_without_graph_breaks(backend: str, causal: bool, function) -> None:
    torch.compiler.reset()

    def call(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        scales = (2.0, 2.0) if causal else (None, None)
        return function(q, k, v, *scales, key_mask=mask, is_causal=causal, backend=backend)

    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    for length in (40, 50, 70):
        inputs = [x.requires_grad_() for x in qkv(length=length)]
        mask = torch.rand(2, length) < 0.7
        torch.testing.assert_close(compiled(*inputs, mask), call(*inputs, mask))
        gradients = [torch.autograd.grad(f(*inputs, mask).square().sum(), inputs) for f in (compiled, call)]
        for actual, expected in zip(*gradients, strict=True):
            torch.testing.assert_close(actual, expected)


def test_compile_with_inductor() -> None:
    torch.compiler.reset()
    inputs = qkv()
    compiled = torch.compile(lambda q, k, v: lln_diag_attention(q * 2, k, v).relu(), fullgraph=True)
    torch.testing.assert_close(compiled(*inputs), lln_diag_attention(inputs[0] * 2, *inputs[1:]).relu())


@pytest.mark.parametrize("causal", [False, True])
def test_export_with_a_dynamic_length(causal: bool) -> None:
    class Attention(torch.nn.Module):
        def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return lln_diag_attention(q, k, v, 2.0, 2.0, is_causal=causal) if causal else lln_attention(q, k, v)

    length = torch.export.Dim("length", min=2, max=4096)
    shapes = ({2: length},) * 3
    program = torch.export.export(Attention(), qkv(length=150), dynamic_shapes=shapes)
    for other in (17, 300):
        inputs = qkv(length=other)
        torch.testing.assert_close(program.module()(*inputs), Attention()(*inputs))


@every_backend
@either_direction
def test_gradient_checkpointing_gives_the_same_gradients(backend: str, causal: bool) -> None:
    inputs = [x.requires_grad_() for x in qkv()]

    def call(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return lln_diag_attention(q, k, v, 2.0, 2.0, is_causal=causal, backend=backend)

    plain = torch.autograd.grad(call(*inputs).square().sum(), inputs)
    saved = torch.autograd.grad(checkpoint(call, *inputs, use_reentrant=False).square().sum(), inputs)
    assert all(torch.equal(a, b) for a, b in zip(plain, saved, strict=True))


@every_backend
def test_double_backward_is_refused_in_words(backend: str) -> None:
    q, k, v = (x.requires_grad_() for x in qkv())
    out = lln_attention(q, k, v, 2.0, 2.0, backend=backend)
    (gradient,) = torch.autograd.grad(out.square().sum(), q, create_graph=True)
    with pytest.raises(RuntimeError, match="no double backward"):
        gradient.sum().backward()


def test_the_oracle_has_a_double_backward() -> None:
    q, k, v = (x.requires_grad_() for x in qkv(batch=1, heads=1, key_heads=1, length=4, dim=2, dtype=torch.float64))
    assert torch.autograd.gradgradcheck(lambda *x: lln_attention(*x, 2.0, 2.0, backend="oracle"), (q, k, v))


@every_backend
@either_direction
def test_vmap_folds_into_the_batch(backend: str, causal: bool) -> None:
    q, k, v = qkv(batch=6)
    mask = torch.rand(6, 70) < 0.7
    stacked = [x.unflatten(0, (3, 2)) for x in (q, k, v, mask)]

    def call(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        return lln_attention(q, k, v, 2.0, 1.5, key_mask=mask, is_causal=causal, backend=backend)

    torch.testing.assert_close(torch.vmap(call)(*stacked).flatten(0, 1), call(q, k, v, mask), atol=0, rtol=0)


@every_backend
def test_vmap_over_packed_sequences_is_refused_in_words(backend: str) -> None:
    q, k, v = (torch.randn(3, 1, 2, 20, 4) for _ in range(3))
    with pytest.raises(RuntimeError, match="vmap over packed sequences"):
        torch.vmap(lambda *x: lln_attention(*x, 2.0, 2.0, cu_seqlens=torch.tensor([0, 7, 20]), backend=backend))(
            q, k, v
        )


def test_what_is_saved_for_backward_does_not_hold_features() -> None:
    length, dim = 2048, 16
    inputs = [x.requires_grad_() for x in qkv(batch=1, heads=2, key_heads=2, length=length, dim=dim)]
    sizes = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: sizes.append(x.numel()) or x, lambda x: x):
        lln_attention(*inputs, 2.0, 2.0, backend="chunked")
    per_position = 2 * length * dim
    assert sum(sizes) < 4.1 * per_position, "only q, k, v, the output and states of size D x D are kept"


def test_the_oracle_as_a_backend() -> None:
    q, k, v = qkv()
    scales = torch.full((2, 4, 16), 2.0), torch.full((2, 2, 16), 1.5)
    torch.testing.assert_close(
        lln_attention(q, k, v, 2.0, 1.5, backend="oracle"), oracle.forward(Operands(q, k, v, *scales)).out
    )


@either_direction
@pytest.mark.parametrize("side", ["left", "right"])
def test_lln_diag_is_the_same_with_and_without_padding(causal: bool, side: str) -> None:
    q, k, v = qkv(length=100)
    garbage = [torch.full((*x.shape[:2], 37, x.shape[3]), torch.nan) for x in (q, k, v)]
    garbage[0] = torch.zeros_like(garbage[0])  # a query that does not count may be anything finite
    pairs = [(g, x) if side == "left" else (x, g) for g, x in zip(garbage, (q, k, v), strict=True)]
    padded = [torch.cat(pair, dim=2) for pair in pairs]
    real = slice(37, 137) if side == "left" else slice(0, 100)
    mask = torch.zeros(2, 137, dtype=torch.bool)
    mask[:, real] = True
    out = lln_diag_attention(*padded, 2.0, 1.5, key_mask=mask, is_causal=causal)[:, :, real]
    alone = lln_diag_attention(q, k, v, 2.0, 1.5, is_causal=causal)
    torch.testing.assert_close(out, alone, atol=4 * torch.finfo(torch.float32).eps * float(v.abs().max()), rtol=0)
