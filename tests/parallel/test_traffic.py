"""A layer exchanges one state a sample and head, whatever the length: counted where torch dispatches collectives."""

import pytest
import torch

from tests.parallel.pool import Pool

BATCH, HEADS, KEY_HEADS, DIM, VALUE_DIM = 2, 4, 2, 8, 6


@pytest.mark.parametrize("function", ["lln_attention", "lln_diag_attention"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("tokens", [64, 1024])
def test_traffic_is_that_of_the_formula(pool: Pool, function: str, causal: bool, tokens: int) -> None:
    shapes = [(BATCH, HEADS, tokens, DIM), (BATCH, KEY_HEADS, tokens, DIM), (BATCH, KEY_HEADS, tokens, VALUE_DIM)]
    payload = {"shapes": shapes, "function": function, "causal": causal, "check": False}
    states = BATCH * KEY_HEADS * DIM
    for found in pool.run("traffic", [payload] * 3):
        # cuts of LLN+Diag are where blocks begin; where that is, all have to know: lengths, and first keys
        said = [s for s in found["forward"] if s[1] == torch.int64]
        assert len(said) == (1 if function == "lln_diag_attention" else 0) and all(s[2] == 1 + BATCH for s in said)
        forward = [s for s in found["forward"] if s[1] != torch.int64]
        assert [(s[1], s[2]) for s in forward] == [(torch.float32, states * (VALUE_DIM + 2))]
        assert [(s[1], s[2]) for s in found["backward"]] == [(torch.float32, states * (VALUE_DIM + 1))]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("tokens", [64, 1024])
def test_near_far_attention_sends_moments_whatever_the_length(pool: Pool, causal: bool, tokens: int) -> None:
    shapes = [(BATCH, HEADS, tokens, DIM), (BATCH, KEY_HEADS, tokens, DIM), (BATCH, KEY_HEADS, tokens, VALUE_DIM)]
    payload = {"shapes": shapes, "function": "near_far_attention", "causal": causal, "check": False}
    moments = 2 * DIM * VALUE_DIM + 4 * DIM + VALUE_DIM + 1
    expected = [(torch.float64, (1 if causal else 2) * BATCH * KEY_HEADS * moments)]
    for found in pool.run("traffic", [payload] * 3):
        assert [(s[1], s[2]) for s in found["forward"] if s[1] != torch.int64] == expected
        assert [(s[1], s[2]) for s in found["backward"]] == expected


def test_comparing_every_call_costs_twelve_whole_numbers(pool: Pool) -> None:
    shapes = [(BATCH, HEADS, 64, DIM)] * 3
    payload = {"shapes": shapes, "function": "lln_attention", "causal": False, "check": True}
    for found in pool.run("traffic", [payload] * 2):
        assert [s[2] for s in found["forward"] if s[1] == torch.int64] == [12]
        assert len(found["backward"]) == 1


@pytest.mark.parametrize("tokens", [600, 2400])
@pytest.mark.parametrize("sharp", [False, True], ids=["", "sharp"])
@pytest.mark.parametrize("padded", [False, True], ids=["", "padded"])
def test_matching_takes_two_exchanges_of_rows_and_sharp_attention_one_more(
    pool: Pool, tokens: int, sharp: bool, padded: bool
) -> None:
    """What all have to know before: lengths, and with padding how many tokens count."""
    torch.manual_seed(0)
    q, k = torch.randn(BATCH, HEADS, tokens, DIM), torch.randn(BATCH, KEY_HEADS, tokens, DIM)
    if sharp:
        q, k = 3 * q, k.pow(3)
    mask = torch.arange(tokens) >= 3 if padded else None
    payload = {"q": q, "k": k, "key_mask": None if mask is None else mask.expand(BATCH, -1)}
    for found in pool.run("matching_traffic", [payload] * 2):
        said = [s[2] for s in found if s[1] == torch.int64]
        assert said == ([15, BATCH] if padded else [15])
        rows = [s for s in found if s[1] != torch.int64]
        assert [s[0] for s in rows] == ["allreduce_", "_allgather_base_", "allreduce_"][: 3 if sharp else 2]
        of_heads = BATCH * KEY_HEADS
        assert rows[0][2] == of_heads * (48 + 24 + 24 + 96) * DIM  # queries and keys by position
        assert rows[1][2] == of_heads * 2 * 64 * (3 + DIM)  # the top keys of two kinds
