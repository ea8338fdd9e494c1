"""What is exported computes what torch computes, at lengths and with padding that the export did not see."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

import torch
from torch import Tensor

import lln
import lln.onnx
from tests.conversion.models import Blocks
from tests.onnx.running import DYNAMIC, Calls, assert_as_good, exported

SCALES = {"alpha": 1.3, "beta": 1.1}
NEAR: dict[str, Any] = {"block_size": 16, "neighbours": 1, "first_tokens": 5}


def tensors(length: int, batch: int = 2, seed: int = 0) -> tuple[Tensor, ...]:
    """q, k, v and a mask with padding on either side, all queries of one sample after its last key."""
    draw = torch.Generator().manual_seed(seed)
    q, k, v = (2 * torch.randn(batch, heads, length, 16, generator=draw) for heads in (4, 2, 2))
    mask = torch.ones(batch, length, dtype=torch.bool)
    mask[0, :3], mask[-1, -5:] = False, False
    return q, k, v, mask


def matched(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    alpha, beta = lln.match_moments(q, k, key_mask=mask, method="table")
    return lln.lln_attention(q, k, v, alpha, beta, key_mask=mask)


FUNCTIONS: dict[str, Callable[..., Tensor]] = {
    "lln, matched": matched,
    "lln+diag": lambda q, k, v, m: lln.lln_diag_attention(q, k, v, **SCALES, block_size=16, key_mask=m),
    "near-far": lambda q, k, v, m: lln.near_far_attention(q, k, v, **SCALES, key_mask=m, **NEAR),
    "lln, causal": lambda q, k, v, m: lln.lln_attention(q, k, v, **SCALES, key_mask=m, is_causal=True),
    "lln+diag, causal": lambda q, k, v, m: lln.lln_diag_attention(q, k, v, **SCALES, key_mask=m, is_causal=True),
    "near-far, causal": lambda q, k, v, m: lln.near_far_attention(q, k, v, **SCALES, key_mask=m, is_causal=True, **NEAR),
    "lln, causal, no mask": lambda q, k, v, m: lln.lln_attention(q, k, v, **SCALES, is_causal=True) + 0 * m[:, None, :, None],
    "near-far, no mask": lambda q, k, v, m: lln.near_far_attention(q, k, v, **SCALES, **NEAR) + 0 * m[:, None, :, None],
}  # fmt: skip
SEVERAL_AT_ONCE = ["lln, matched", "lln+diag"]  # an export takes seconds, most of them once


def check(names: list[str], path: Path) -> None:
    def together(*args: Tensor) -> list[Tensor]:
        return [FUNCTIONS[name](*args) for name in names]

    dynamic = (({0: DYNAMIC, 2: DYNAMIC},) * 3 + ({0: DYNAMIC, 1: DYNAMIC},),)
    run = exported(Calls(together), tensors(70), path, dynamic)
    for length, batch in ((70, 2), (13, 1), (200, 3)):
        args = tensors(length, batch, seed=length)
        found, plain = run(*args), together(*args)
        true = together(*(x.double() if x.is_floating_point() else x for x in args))
        for results in zip(found, plain, true, strict=True):
            assert_as_good(*results)


def test_functions(tmp_path: Path) -> None:
    check(SEVERAL_AT_ONCE, tmp_path / "functions.onnx")


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in FUNCTIONS if name not in SEVERAL_AT_ONCE])
def test_other_functions(name: str, tmp_path: Path) -> None:
    check([name], tmp_path / "function.onnx")


@pytest.mark.slow
def test_a_converted_encoder_takes_any_length_and_padding(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Blocks(layers=1).eval()
    batches = [(torch.randn(2, 96, 32), _padding(2, 96)) for _ in range(2)]
    assert lln.convert(model, batches, block_size=16).replaced
    run = exported(model, batches[0], tmp_path / "encoder.onnx", ({0: DYNAMIC, 1: DYNAMIC}, {0: DYNAMIC, 3: DYNAMIC}))
    true = copy.deepcopy(model).double()
    for length, batch in ((96, 2), (150, 1)):
        x, mask = torch.randn(batch, length, 32), _padding(batch, length)
        with torch.no_grad():
            assert_as_good(run(x, mask)[0], model(x, mask), true(x.double(), mask))


def _padding(batch: int, length: int) -> Tensor:
    mask = torch.ones(batch, 1, 1, length, dtype=torch.bool)
    mask[0, ..., -9:] = False
    return mask


@pytest.mark.slow
def test_layers_of_each_kind(tmp_path: Path) -> None:
    options: dict[str, Any] = {"matching_options": {"method": "table"}}
    layers = [lln.LLNAttention(32, 2, **options), lln.LLNDiagAttention(32, 2, block_size=16, **options)]
    layers += [lln.LLNAttention(32, 2, causal=True, matching="fixed", matching_options=SCALES)]
    for number, layer in enumerate(layers):
        model = Calls(lambda x, layer=layer: layer(x)[0]).eval()
        run = exported(model, (torch.randn(2, 70, 32),), tmp_path / f"{number}.onnx", (({0: DYNAMIC, 1: DYNAMIC},),))
        x = torch.randn(3, 101, 32)
        plain, true = (m(y)[0].detach() for m, y in ((layer, x), (copy.deepcopy(layer).double(), x.double())))
        assert_as_good(run(x)[0], plain, true)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda q, k, v, m: lln.lln_attention(q, k, v), "method 'sample' .* method='table'"),
        (lambda q, k, v, m: lln.lln_attention(q[:1], k[:1], v[:1], 1.0, 1.0, cu_seqlens=torch.tensor([0, 13])), "padded batch"),
    ],
)  # fmt: skip
def test_what_a_graph_cannot_hold_is_refused_in_words(function: Any, message: str) -> None:
    with pytest.raises(NotImplementedError, match=message):
        lln.onnx.portable(Calls(function), tensors(13))


def test_after_an_export_operations_are_their_own_again() -> None:
    args = tensors(13)[:3]
    before = lln.lln_attention(*args, **SCALES)
    program = lln.onnx.portable(Calls(lambda q, k, v: lln.lln_attention(q, k, v, **SCALES)), args)
    targets = {str(node.target) for node in program.graph.nodes if node.op == "call_function"}
    assert targets and not any(target.startswith("lln") for target in targets)
    assert torch.equal(lln.lln_attention(*args, **SCALES), before)
    own = torch.export.export(Calls(lambda q, k, v: lln.lln_attention(q, k, v, **SCALES)), args)
    assert any("lln.attention" in str(node.target) for node in own.graph.nodes)
