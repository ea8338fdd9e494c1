"""A text within one block is softmax; beyond it LLN's weight grows with the keys that a row sees outside its block."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModel

import lln.hf
from lln.hf import LLNOptions, convert
from lln.hf.attention.far_weight import FarPast, far_share, far_share_of_piece
from lln.hf.modules import attention_modules
from lln.instruments.capture import Recorder
from lln.state import OpenBlock
from tests.hf.models import CAUSAL, ENCODERS, inputs, make, output, spread_out

BLOCK = 4


def _counted_one_by_one(mask: Tensor, causal: bool) -> Tensor:
    """min(1, f / block) by the definition, key by key; mask (N,)."""
    length = len(mask)
    first = int(mask.int().argmax())
    block = [max(0, (i - first) // BLOCK) for i in range(length)]
    far = [
        sum(bool(mask[j]) and block[j] != block[i] and (j <= i or not causal) for j in range(length))
        for i in range(length)
    ]
    return torch.tensor([min(1.0, f / BLOCK) for f in far])


@pytest.mark.parametrize("causal", [False, True])
def test_the_share_counts_the_keys_outside_the_block(causal: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    mask = torch.rand(6, 17, generator=generator) < 0.7  # holes anywhere
    mask[0], mask[1, :5], mask[2, 9:], mask[3, :], mask[3, 11:14] = True, False, False, False, True
    found = far_share(17, BLOCK, is_causal=causal, key_mask=mask)
    wanted = torch.stack([_counted_one_by_one(row, causal) for row in mask])
    assert torch.equal(found, wanted)
    assert torch.equal(far_share(17, BLOCK, is_causal=causal), wanted[:1])


@pytest.mark.parametrize("causal", [False, True])
def test_packed_sequences_count_alone(causal: bool) -> None:
    edges = torch.tensor([0, 3, 3, 12, 13, 30], dtype=torch.int32)
    found = far_share(30, BLOCK, is_causal=causal, cu_seqlens=edges)
    alone = [far_share(n, BLOCK, is_causal=causal) for n in edges.diff().tolist()]
    assert torch.equal(found, torch.cat(alone, dim=1))


def _open_block(mask: Tensor) -> OpenBlock:
    """What lln.block_diagonal keeps of the keys so far; mask (B, n)."""
    started = mask.any(dim=1)
    first = torch.where(started, mask.int().argmax(dim=1), mask.shape[1])
    filled = (mask.shape[1] - first) % BLOCK
    counts = torch.zeros(len(mask), BLOCK, dtype=torch.bool)
    for row, n in enumerate(filled.tolist()):
        counts[row, :n] = mask[row, mask.shape[1] - n :]
    nothing = torch.zeros(len(mask), 1, BLOCK, 1)
    return OpenBlock(nothing, nothing, counts, filled, started)


@pytest.mark.parametrize("cuts", [(17,), (1,) * 17, (6, 1, 4, 6), (3, 14)])
def test_pieces_count_as_the_whole_does(cuts: tuple[int, ...]) -> None:
    mask = torch.rand(5, 17, generator=torch.Generator().manual_seed(1)) < 0.7
    mask[0], mask[1, :7], mask[2] = True, False, False
    past, found, at = None, [], 0
    for size in cuts:
        share, full = far_share_of_piece(mask[:, at : at + size], past, torch.zeros(5, 1, size, 1), BLOCK)
        at += size
        past = FarPast(full, _open_block(mask[:, :at]))
        found.append(share)
    rows = mask.cumsum(1) > 0  # rows before the first key that counts are padding
    wanted = far_share(17, BLOCK, is_causal=True, key_mask=mask)
    assert torch.equal(torch.where(rows, torch.cat(found, dim=1), 0), torch.where(rows, wanted, 0))


@pytest.mark.parametrize("family", [*ENCODERS, *CAUSAL])
def test_a_text_within_one_block_is_softmax(family: str) -> None:
    given = inputs(family, length=21)
    given["attention_mask"] = torch.ones_like(given["input_ids"])
    given["attention_mask"][0, 15:] = 0
    model = make(family, block_size=21)
    with torch.no_grad():
        found = output(model, **given)
        model.set_attn_implementation("sdpa")
        wanted = output(model, **given)
    rows = given["attention_mask"].bool()
    torch.testing.assert_close(found[rows], wanted[rows], rtol=1e-4, atol=1e-4)


def test_the_weight_grows_by_one_key_at_a_time() -> None:
    """A row of the first block: nothing within it, then 1 / block for each key beyond, and no more than 1."""
    first = [float(far_share(n, BLOCK, is_causal=False)[0, 0]) for n in range(1, 11)]
    assert first == [0, 0, 0, 0, 0.25, 0.5, 0.75, 1, 1, 1]


@pytest.mark.parametrize("family", ["bert", "llama"])
def test_padding_left_or_right_changes_nothing(family: str) -> None:
    model = make(family)
    ids = inputs(family, batch=1, length=19)["input_ids"]
    with torch.no_grad():
        alone = output(model, input_ids=ids)
        for left in (0, 5):
            padded = torch.nn.functional.pad(ids, (left, 5 - left))
            mask = torch.nn.functional.pad(torch.ones_like(ids), (left, 5 - left))
            position = (mask.cumsum(1) - 1).clamp_min(0)
            found = output(model, input_ids=padded, attention_mask=mask, position_ids=position)
            torch.testing.assert_close(found[:, left : left + 19], alone, rtol=1e-4, atol=1e-4)


def test_a_cache_that_is_reordered_keeps_its_counts() -> None:
    """Beams with paddings of their own: each goes on with the weight of its own past."""
    model = make("llama")
    ids = inputs("llama", batch=2, length=20)["input_ids"]
    mask = torch.ones_like(ids)
    mask[0, :9] = 0
    position = (mask.cumsum(1) - 1).clamp_min(0)
    order = torch.tensor([1, 0, 0])
    with torch.no_grad():
        whole = output(model, input_ids=ids, attention_mask=mask, position_ids=position)[order, -3:]
        cache = lln.hf.LLNCache.of(model)
        options: dict[str, Any] = {"past_key_values": cache, "use_cache": True}
        model(ids[:, :-3], attention_mask=mask[:, :-3], position_ids=position[:, :-3], **options)
        cache.reorder_cache(order)
        ids, mask, position = ids[order], mask[order], position[order]
        found = model(ids[:, -3:], attention_mask=mask, position_ids=position[:, -3:], **options).logits
    torch.testing.assert_close(found, whole, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("maps", [False, True])
def test_the_branches_of_a_converted_model_have_the_same_weights(maps: bool) -> None:
    """With maps the branches run apart; maps that are identities change nothing."""
    model = make("bert", "sdpa")
    del model.config.lln
    given = inputs("bert", length=40)
    convert(model, calibrate=[given], block_size=24, maps=maps)
    text = inputs("bert", length=24)
    with torch.no_grad():
        found = [output(model, **x) for x in (given, text)]
        model.set_attn_implementation("sdpa")
        torch.testing.assert_close(found[1], output(model, **text), rtol=1e-4, atol=1e-4)
        assert not torch.allclose(found[0], output(model, **given), rtol=1e-2, atol=1e-2)


def test_texts_that_all_fit_a_block_leave_the_matched_values_and_say_so() -> None:
    model = make("bert", "sdpa")
    del model.config.lln
    with pytest.warns(UserWarning, match="fits a block of 64"):
        convert(model, calibrate=[inputs("bert")])
    fitted = [module.lln for module in attention_modules(model)]
    with pytest.warns(UserWarning, match="fits a block of 64"):
        convert(lln.hf.unload(model), calibrate=[inputs("bert")], subtract_mean_key=True)
    matched = convert(lln.hf.unload(model), calibrate=[inputs("bert")], fit=False)
    for own, module in zip(fitted, attention_modules(matched), strict=True):
        assert torch.equal(own.alpha, module.lln.alpha) and torch.equal(own.mix, torch.full((4,), 0.5))


def test_what_was_converted_before_keeps_one_weight_for_all_rows(tmp_path: Path) -> None:
    """A folder as the release before wrote it: config.lln of version 1, no other word of the attention."""
    model = make("bert", "sdpa")
    del model.config.lln
    convert(model, calibrate=[inputs("bert")], block_size=8, far_weight=False)
    model.save_pretrained(tmp_path)
    written = json.loads((tmp_path / "config.json").read_text())
    assert written["lln"].pop("far_weight") is False
    written["lln"]["version"] = 1
    written.pop("attn_implementation", None)
    (tmp_path / "config.json").write_text(json.dumps(written))
    old = AutoModel.from_pretrained(tmp_path).eval()
    assert old.config._attn_implementation == "lln_diag" and not LLNOptions.from_dict(old.config.lln).far_weight
    old.save_pretrained(tmp_path / "again")
    again = AutoModel.from_pretrained(tmp_path / "again").eval()
    with torch.no_grad():
        wanted = output(model, **inputs("bert"))
        assert torch.equal(output(old, **inputs("bert")), wanted)
        assert torch.equal(output(again, **inputs("bert")), wanted)


def test_new_conversions_have_the_weight_that_grows() -> None:
    model = make("bert", "sdpa")
    del model.config.lln
    convert(model, calibrate=[inputs("bert")], block_size=8)
    assert LLNOptions.from_dict(model.config.lln).far_weight and model.config.lln["version"] == 2


def test_instruments_see_the_weight_of_each_row() -> None:
    model = make("bert", block_size=8)
    given = inputs("bert", batch=1)
    with Recorder(1, lambda: "model") as seen, torch.no_grad():
        model(**given)
    with torch.no_grad():
        shown = model(**given, output_attentions=True).attentions
    for call, weights in zip(seen.calls, shown, strict=True):
        torch.testing.assert_close(call.build().rows(torch.arange(21)).float(), weights, rtol=1e-4, atol=1e-5)


def test_learned_mixing_in_half_precision_has_a_finite_gradient() -> None:
    model = make("bert", "sdpa")
    del model.config.lln
    convert(model, calibrate=[inputs("bert", length=64)], block_size=8, maps=True)
    model = spread_out(model).to(torch.float16)
    for module in attention_modules(model):
        module.lln.trainable()
    (output(model, **inputs("bert", length=64)) * 100).sum().backward()
    for module in attention_modules(model):
        assert module.lln.mix.grad.isfinite().all() and module.lln.mix.grad.dtype == torch.float32
