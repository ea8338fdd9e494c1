"""Decoding outside of torch: a token and a state go into the graph, the token's output and the next state come out."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

import lln
import lln.onnx
from tests.onnx.running import DYNAMIC, Calls, assert_as_good, exported

CAUSAL: dict[str, Any] = {"alpha": 1.3, "beta": 1.1, "is_causal": True, "return_state": True}
NEAR: dict[str, Any] = {"block_size": 4, "neighbours": 1, "first_tokens": 3}


def _lln(q: Tensor, k: Tensor, v: Tensor, state: Any) -> Any:
    return lln.lln_attention(q, k, v, state=state, **CAUSAL)


def _diag(q: Tensor, k: Tensor, v: Tensor, state: Any) -> Any:
    return lln.lln_diag_attention(q, k, v, state=state, block_size=4, **CAUSAL)


def _near_far(q: Tensor, k: Tensor, v: Tensor, state: Any) -> Any:
    return lln.near_far_attention(q, k, v, state=state, **CAUSAL, **NEAR)


def draw(length: int, seed: int, batch: int = 2) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [2 * torch.randn(batch, heads, length, 16, generator=generator) for heads in (4, 2, 2)]


def check(attention: Callable[..., Any], length: int, pieces: int, path: Path) -> None:
    """Pieces one after the other, each from the state that the graph gave for the one before."""
    prompt = draw(13, seed=0)
    state, true = attention(*prompt, None)[1], attention(*(x.double() for x in prompt), None)[1]
    run = exported(Calls(attention), (*draw(length, seed=1), state), path, None)
    plain, in_graph = state, tree_leaves(state)
    for seed in range(pieces):
        given = draw(length, seed=seed + 2)
        found, *in_graph = run(*given, *in_graph)
        out, plain = attention(*given, plain)
        wanted, true = attention(*(x.double() for x in given), true)
        assert_as_good(found, out, wanted)
    for actual, in_torch, exact in zip(in_graph, tree_leaves(plain), tree_leaves(true), strict=True):
        assert actual.dtype == in_torch.dtype and actual.shape == in_torch.shape
        if exact.dtype.is_floating_point:
            assert_as_good(actual, in_torch.to(actual.dtype), exact)
        else:
            assert torch.equal(actual, exact)


def test_a_decoding_step_of_lln_and_diag(tmp_path: Path) -> None:
    """Five tokens: the block of four fills up on the way."""
    check(_diag, 1, 5, tmp_path / "step.onnx")


@pytest.mark.slow
@pytest.mark.parametrize("attention", [_lln, _near_far])
def test_other_decoding_steps(attention: Callable[..., Any], tmp_path: Path) -> None:
    check(attention, 1, 5, tmp_path / "step.onnx")


@pytest.mark.slow
@pytest.mark.parametrize("attention", [_lln, _diag])
def test_pieces_of_several_tokens_go_on_from_a_state(attention: Callable[..., Any], tmp_path: Path) -> None:
    check(attention, 7, 2, tmp_path / "piece.onnx")


@pytest.mark.slow
@pytest.mark.timeout(1800)  # half a minute of CPU time, which a busy machine does not give in ten minutes
@pytest.mark.parametrize("attention", ["lln_diag", "lln_near_far"])
def test_a_hugging_face_encoder_takes_any_length_and_padding(attention: str, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    import lln.hf
    from tests.hf.models import make

    def batch(size: int, length: int) -> tuple[Tensor, Tensor]:
        ids = torch.randint(3, 40, (size, length), generator=torch.Generator().manual_seed(length))
        mask = torch.ones_like(ids)
        mask[0, -2:] = 0
        return ids, mask

    model = make("bert", "sdpa")
    model.encoder.layer = model.encoder.layer[:1]  # two take twice as long to export, and show nothing more
    model.config.lln, model.config.num_hidden_layers = None, 1
    ids, mask = batch(2, 40)
    lln.hf.convert(model, attention, calibrate=[{"input_ids": ids, "attention_mask": mask}], block_size=8)
    encoder = Calls(lambda ids, mask: model(input_ids=ids, attention_mask=mask).last_hidden_state)
    encoder.model = model
    run = exported(encoder, (ids, mask), tmp_path / "encoder.onnx", (({0: DYNAMIC, 1: DYNAMIC},) * 2,))
    exact = copy.deepcopy(model).double()
    for size, length in ((2, 40), (3, 71), (2, 9), (1, 5)):  # the last within one block
        ids, mask = batch(size, length)
        counts = mask.bool()
        with torch.no_grad():
            plain, true = (m(input_ids=ids, attention_mask=mask).last_hidden_state for m in (model, exact))
        assert_as_good(run(ids, mask)[0][counts], plain[counts], true[counts])
