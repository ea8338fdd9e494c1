"""Bad input, a test per kind of mistake: the message says what was given and what would fit."""

import pytest
import torch

from lln import (
    LLNAttention,
    LLNDiagAttention,
    LLNEncoderLayer,
    block_diagonal_attention,
    lln_attention,
    lln_diag_attention,
    match_moments,
    near_far_attention,
)
from lln.ops.checks import check_boundaries, check_shapes_of_packed

q, k, v = torch.randn(2, 4, 10, 8), torch.randn(2, 2, 10, 8), torch.randn(2, 2, 10, 8)
functions = pytest.mark.parametrize("function", [lln_attention, lln_diag_attention, block_diagonal_attention])


@functions
@pytest.mark.parametrize(
    "bad, error, message",
    [
        ((q[0], k, v), ValueError, r"q must have 4 dimensions \(batch, heads, length, head size\), got \(4, 10, 8\)"),
        ((q.numpy(), k, v), TypeError, "q must be a tensor, got ndarray"),
        ((q[:, :3], k, v), ValueError, "the 3 heads of q must be a multiple of the 2 heads of k and v"),
        ((q, k, v[:, :1]), ValueError, r"k and v must agree .* got \(2, 2, 10, 8\) and \(2, 1, 10, 8\)"),
        ((q, k[..., :4], v), ValueError, "q and k must have one head size, got 8 and 4"),
        ((q[:1], k, v), ValueError, "q and k must have one batch size, got 1 and 2"),
        ((q.double(), k, v), TypeError, "one dtype, got torch.float64, torch.float32 and torch.float32"),
        ((q.long(), k.long(), v.long()), TypeError, "must be float16, bfloat16, float32 or float64, got torch.int64"),
        ((q.to("meta"), k, v), ValueError, "one device, got meta, cpu and cpu"),
        ((q[:, :, :0], k[:, :, :0], v[:, :, :0]), ValueError, "lengths and head sizes must be at least 1"),
    ],
    ids=["rank", "type", "heads", "values", "head size", "batch", "mixed dtypes", "integers", "devices", "empty"],
)
def test_wrong_tensors(function, bad, error, message) -> None:
    with pytest.raises(error, match=message):
        function(*bad)


@functions
@pytest.mark.parametrize(
    "mask, error, message",
    [
        (torch.ones(10, 10, dtype=torch.bool), ValueError, r"an N x N mask, here \(10, 10\), cannot be honoured"),
        (torch.ones(2, 1, 10, 10, dtype=torch.bool), ValueError, "an N x N mask"),
        (torch.ones(2, 9, dtype=torch.bool), ValueError, r"\(batch, keys\) = \(2, 10\), got \(2, 9\)"),
        (torch.ones(2, 10), TypeError, "must be bool, True where the key counts, got torch.float32"),
        (torch.ones(2, 10, dtype=torch.bool, device="meta"), ValueError, "on the device of k, cpu, got meta"),
    ],
    ids=["N x N", "4-D", "shape", "dtype", "device"],
)
def test_wrong_masks(function, mask, error, message) -> None:
    with pytest.raises(error, match=message):
        function(q, k, v, key_mask=mask)


@functions
@pytest.mark.parametrize(
    "edges, message",
    [
        (torch.tensor([0, 4, 9]), r"rise from 0 to the total length 10, got \[0, 4, 9\]"),
        (torch.tensor([1, 4, 10]), r"rise from 0 .* got \[1, 4, 10\]"),
        (torch.tensor([0, 7, 4, 10]), r"rise from 0 .* got \[0, 7, 4, 10\]"),
        (torch.tensor([0.0, 10.0]), "1-D int32 or int64 tensor"),
        (torch.tensor([[0, 10]]), "1-D int32 or int64 tensor"),
    ],
    ids=["end", "start", "order", "dtype", "rank"],
)
def test_boundaries_that_do_not_add_up(function, edges, message) -> None:
    with pytest.raises(ValueError, match=message):
        function(q[:1], k[:1], v[:1], cu_seqlens=edges)


FAR_BOUNDARIES = [[0, 10**9], [0, 100], [0, 10**15, 10], [-(10**9), 10], [0, 11], [0, -5, 10]]


@pytest.mark.parametrize("edges", FAR_BOUNDARIES, ids=str)
@pytest.mark.parametrize("layer", [LLNAttention, LLNDiagAttention])
def test_layers_refuse_boundaries_outside_of_their_input(layer, edges) -> None:
    for options in ({}, {"causal": True}, {"matching": "running"}):
        with pytest.raises(ValueError, match="rise from 0 to the total length 10"):
            layer(8, 2, **options)(torch.randn(1, 10, 8), cu_seqlens=torch.tensor(edges))


@pytest.mark.parametrize("edges", FAR_BOUNDARIES, ids=str)
def test_matching_refuses_boundaries_outside_of_its_input(edges) -> None:
    x = torch.randn(1, 2, 10, 8)
    with pytest.raises(ValueError, match="rise from 0 to the total length 10"):
        match_moments(x, x, cu_seqlens=torch.tensor(edges))


@functions
@pytest.mark.parametrize("edges", FAR_BOUNDARIES, ids=str)
def test_compiled_graphs_refuse_boundaries_outside_of_their_input(function, edges) -> None:
    def attend(q, k, v, edges):
        scales = {} if function is block_diagonal_attention else {"alpha": 2.0, "beta": 2.0}
        return function(q, k, v, cu_seqlens=edges, **scales)

    compiled = torch.compile(attend, fullgraph=True, backend="eager")
    with pytest.raises(ValueError, match="rise from 0 to the total length 10"):
        compiled(q[:1], k[:1], v[:1], torch.tensor(edges))


def test_compiled_gradients_are_refused_with_their_forward() -> None:
    leaves = [x[:1].clone().requires_grad_() for x in (q, k, v)]
    compiled = torch.compile(lambda *x: lln_diag_attention(*x[:3], 2.0, 2.0, cu_seqlens=x[3]), backend="aot_eager")
    compiled(*leaves, torch.tensor([0, 4, 10])).sum().backward()
    with pytest.raises(ValueError, match="rise from 0 to the total length 10"):
        compiled(*leaves, torch.tensor([0, 40, 10]))


def test_checks_of_shapes_read_no_value_and_boundaries_are_a_check_of_their_own() -> None:
    packed = torch.randn(1, 2, 10, 8, device="meta")
    check_shapes_of_packed(packed, packed, torch.zeros(3, dtype=torch.int64, device="meta"))
    check_boundaries(torch.zeros(3, dtype=torch.int64, device="meta"), 10)  # values that cannot be read are not
    check_boundaries(None, 10)
    check_boundaries(torch.tensor([0, 3, 3, 10], dtype=torch.int32), 10)
    with pytest.raises(ValueError, match=r"total length 10, got \[0, 3\]"):
        check_boundaries(torch.tensor([0, 3]), 10)
    with pytest.raises(ValueError, match=r"got \[0, 1, 2, 3, 4, 5, 6, 7, ..., 999\]"):
        check_boundaries(torch.arange(1000), 10)


@functions
def test_packed_sequences_need_a_batch_of_one_and_no_padding(function) -> None:
    edges = torch.tensor([0, 10])
    with pytest.raises(ValueError, match=r"shape \(1, heads, total length, head size\)"):
        function(q, k, v, cu_seqlens=edges)
    with pytest.raises(ValueError, match="cu_seqlens or key_mask, not both"):
        function(q[:1], k[:1], v[:1], cu_seqlens=edges, key_mask=torch.ones(1, 10, dtype=torch.bool))


@pytest.mark.parametrize("function", [lln_attention, lln_diag_attention])
def test_causal_attention_without_scales_names_the_matcher(function) -> None:
    with pytest.raises(ValueError, match="causal attention needs alpha and beta.*MomentMatcher"):
        function(q, k, v, is_causal=True)


@pytest.mark.parametrize("function", [lln_attention, lln_diag_attention])
def test_a_state_knows_its_scales(function) -> None:
    _, state = function(q, k, v, 2.0, 1.5, is_causal=True, return_state=True)
    given, own = (
        function(q, k, v, 2.0, 1.5, is_causal=True, state=state),
        function(q, k, v, is_causal=True, state=state),
    )
    assert torch.equal(given, own)


def test_causal_attention_needs_as_many_queries_as_keys() -> None:
    with pytest.raises(ValueError, match="as many queries as keys, got 1 and 10.*state="):
        lln_attention(q[:, :, :1], k, v, 2.0, 2.0, is_causal=True)
    with pytest.raises(ValueError, match="blocks need as many queries as keys, got 1 and 10"):
        block_diagonal_attention(q[:, :, :1], k, v)


def test_a_state_of_blocks_needs_causal_attention_and_none_goes_with_packing() -> None:
    with pytest.raises(ValueError, match="state and return_state need is_causal=True"):
        lln_diag_attention(q, k, v, 2.0, 2.0, return_state=True)
    with pytest.raises(ValueError, match="packed sequences have no state"):
        lln_attention(
            q[:1], k[:1], v[:1], 2.0, 2.0, is_causal=True, cu_seqlens=torch.tensor([0, 10]), return_state=True
        )


@pytest.mark.parametrize("name", ["alpha", "beta", "feature_bias"])
def test_scales_that_do_not_broadcast(name: str) -> None:
    options = {"alpha": 2.0, "beta": 2.0, name: torch.ones(3, 1, 8)}
    with pytest.raises(ValueError, match=rf"{name} must broadcast to .*, got \(3, 1, 8\)"):
        lln_attention(q, k, v, **options)


def test_unknown_names() -> None:
    with pytest.raises(
        ValueError, match="unknown backend 'cuda'; there are 'auto', 'native', 'triton', 'chunked', 'oracle'"
    ):
        lln_attention(q, k, v, backend="cuda")
    with pytest.raises(ValueError, match="unknown backend 'torch'; .*'chunked' is plain torch"):
        lln_attention(q, k, v, backend="torch")
    with pytest.raises(ValueError, match="unknown attention 'softmax'; there are 'lln', 'lln_diag'"):
        LLNEncoderLayer(16, 2, attention="softmax")
    with pytest.raises(ValueError, match="activation must be 'relu', 'gelu' or a function, got 'tanh'"):
        LLNEncoderLayer(16, 2, activation="tanh")


@pytest.mark.parametrize("block_size", [0, -1, 2.5])
def test_block_sizes_below_one(block_size) -> None:
    for function in (lln_diag_attention, block_diagonal_attention):
        with pytest.raises(ValueError, match=f"whole number of at least 1, got {block_size}"):
            function(q, k, v, block_size=block_size)


def test_mixing_weights_that_fit_no_head() -> None:
    with pytest.raises(ValueError, match=r"one for each of the 4 heads, or broadcast to .*, got \(3,\)"):
        lln_diag_attention(q, k, v, mix=torch.ones(3))


def test_layers_that_cannot_be_made() -> None:
    with pytest.raises(ValueError, match="embed_dim must be a multiple of num_heads, got 10 and 3"):
        LLNAttention(10, 3)
    with pytest.raises(ValueError, match="num_heads must be a multiple of num_key_heads, got 4 and 3"):
        LLNAttention(16, 4, num_key_heads=3)
    with pytest.raises(ValueError, match="dropout must be at least 0 and below 1, got 1.5"):
        LLNAttention(16, 4, dropout=1.5)
    with pytest.raises(ValueError, match="matching='sample' reads the whole sequence, the future too"):
        LLNAttention(16, 4, causal=True, matching="sample")
    with pytest.raises(ValueError, match="mix must be between 0 and 1"):
        LLNDiagAttention(16, 4, mix=1.5)
    with pytest.raises(ValueError, match="an N x N src_mask cannot be honoured"):
        LLNEncoderLayer(16, 4)(torch.randn(1, 5, 16), src_mask=torch.ones(5, 5))
    with pytest.raises(ValueError, match="this layer is bidirectional"):
        LLNEncoderLayer(16, 4)(torch.randn(1, 5, 16), is_causal=True)
    with pytest.raises(ValueError, match="need_weights and return_state cannot be combined"):
        LLNAttention(16, 4, causal=True)(torch.randn(1, 5, 16), need_weights=True, return_state=True)


@pytest.mark.parametrize("scale", [float("nan"), float("inf")])
def test_a_scale_that_is_not_finite_is_refused(scale: float) -> None:
    for call in (
        lambda: lln_diag_attention(q, k, v, scale=scale),
        lambda: block_diagonal_attention(q, k, v, scale=scale),
        lambda: near_far_attention(q, k, v, scale=scale),
        lambda: match_moments(q, k, scale=scale),
    ):
        with pytest.raises(ValueError, match="scale must be a finite number, got (nan|inf)"):
            call()


def test_weights_of_near_far_attention_are_real_and_finite() -> None:
    with pytest.raises(TypeError, match=r"weights must be real numbers, got torch\.complex64"):
        near_far_attention(q, k, v, weights=torch.ones(4, dtype=torch.complex64))
    with pytest.raises(ValueError, match="weights must be finite numbers, got nan"):
        near_far_attention(q, k, v, weights=torch.tensor([0.0, 1.0, 1.0, float("nan")]))


def test_a_block_size_of_true_is_refused() -> None:
    with pytest.raises(ValueError, match="block_size must be a whole number of at least 1, got True"):
        block_diagonal_attention(q, k, v, block_size=True)
