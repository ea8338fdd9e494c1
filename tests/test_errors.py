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
)

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
        function(q, k, v, key_padding_mask=mask)


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


@functions
def test_packed_sequences_need_a_batch_of_one_and_no_padding(function) -> None:
    edges = torch.tensor([0, 10])
    with pytest.raises(ValueError, match=r"shape \(1, heads, total length, head size\)"):
        function(q, k, v, cu_seqlens=edges)
    with pytest.raises(ValueError, match="cu_seqlens or key_padding_mask, not both"):
        function(q[:1], k[:1], v[:1], cu_seqlens=edges, key_padding_mask=torch.ones(1, 10, dtype=torch.bool))


@pytest.mark.parametrize("function", [lln_attention, lln_diag_attention])
def test_causal_attention_without_scales_names_the_matcher(function) -> None:
    with pytest.raises(ValueError, match="causal attention needs alpha and beta.*MomentMatcher"):
        function(q, k, v, is_causal=True)
    _, state = function(q, k, v, 2.0, 2.0, is_causal=True, return_state=True)
    with pytest.raises(ValueError, match="MomentMatcher"):
        function(q, k, v, is_causal=True, state=state)


def test_causal_attention_needs_as_many_queries_as_keys() -> None:
    with pytest.raises(ValueError, match="as many queries as keys, got 1 and 10.*state="):
        lln_attention(q[:, :, :1], k, v, 2.0, 2.0, is_causal=True)
    with pytest.raises(ValueError, match="blocks need as many queries as keys, got 1 and 10"):
        block_diagonal_attention(q[:, :, :1], k, v)


def test_a_state_needs_causal_attention_without_packing() -> None:
    with pytest.raises(ValueError, match="state and return_state need is_causal=True"):
        lln_attention(q, k, v, 2.0, 2.0, return_state=True)
    with pytest.raises(ValueError, match="packed sequences have no state"):
        lln_attention(
            q[:1], k[:1], v[:1], 2.0, 2.0, is_causal=True, cu_seqlens=torch.tensor([0, 10]), return_state=True
        )
    with pytest.raises(ValueError, match="the oracle keeps no state"):
        lln_attention(q, k, v, 2.0, 2.0, is_causal=True, return_state=True, backend="oracle")


@pytest.mark.parametrize("name", ["alpha", "beta", "feature_bias"])
def test_scales_that_do_not_broadcast(name: str) -> None:
    options = {"alpha": 2.0, "beta": 2.0, name: torch.ones(3, 1, 8)}
    with pytest.raises(ValueError, match=rf"{name} must broadcast to .*, got \(3, 1, 8\)"):
        lln_attention(q, k, v, **options)


def test_unknown_names() -> None:
    with pytest.raises(ValueError, match="unknown backend 'cuda'; there are 'native', 'chunked', 'oracle'"):
        lln_attention(q, k, v, backend="cuda")
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
    with pytest.raises(ValueError, match=r"one for each of the 4 heads, got \(3,\)"):
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
    with pytest.raises(ValueError, match="the weights or for the state, not for both"):
        LLNAttention(16, 4, causal=True)(torch.randn(1, 5, 16), need_weights=True, return_state=True)
