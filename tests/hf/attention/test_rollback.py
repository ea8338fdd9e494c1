"""Tokens taken back out of the cache, copies of it, and prompts kept in a file."""

from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("transformers")

from lln.hf import LLNCache, convert
from tests.hf import architectures
from tests.hf.models import inputs, make

ATTENTIONS = ["lln", "lln_diag", "lln_near_far"]


WINDOWS = ("gemma3", "mistral_with_window")
HYBRIDS = (*WINDOWS, "lfm2", "jamba", "qwen3_next", "falcon_h1", "zamba2")


def hybrid(name: str) -> Any:
    return architectures.make({**architectures.RIGHT, **architectures.FURTHER}[name], "lln_diag")


def ids_of(length: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(5, 40, (1, length), generator=torch.Generator().manual_seed(seed))


def feed(model: Any, cache: LLNCache, ids: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        logits: torch.Tensor = model(ids, past_key_values=cache, use_cache=True).logits
    return logits


@pytest.mark.parametrize("attention", ATTENTIONS)
@pytest.mark.parametrize("back", [1, 3, 7, 12])
def test_what_was_taken_back_was_never_there(attention: str, back: int) -> None:
    """Inside the last piece, across pieces of one token, and at the edge of a piece."""
    model, ids, after = make("llama", attention), ids_of(40), ids_of(9, seed=1)
    cache = LLNCache.of(model)
    feed(model, cache, ids[:, :20])
    cache.activate_past_recording()
    for a, b in ((20, 28), (28, 37), (37, 38), (38, 39), (39, 40)):
        feed(model, cache, ids[:, a:b])
    cache.crop(-back)
    assert cache.get_seq_length() == 40 - back
    wanted = LLNCache.of(model)
    feed(model, wanted, ids[:, : 40 - back])
    torch.testing.assert_close(feed(model, cache, after), feed(model, wanted, after), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_prompt_lookup_gives_the_tokens_that_plain_decoding_gives(attention: str) -> None:
    model = make("llama", attention)
    ids = ids_of(12).repeat(1, 3)  # so that there is something to look up
    options: dict[str, Any] = {"max_new_tokens": 24, "do_sample": False, "attention_mask": torch.ones_like(ids)}
    assert torch.equal(model.generate(ids, prompt_lookup_num_tokens=4, **options), model.generate(ids, **options))


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_an_assistant_changes_nothing(attention: str) -> None:
    """Both are linear; the assistant is another model, so that much of what it proposes is taken back."""
    model = make("llama", attention)
    torch.manual_seed(5)
    assistant = make("llama", attention)
    with torch.no_grad():
        for parameter in assistant.parameters():
            parameter.add_(0.02 * torch.randn_like(parameter))
    ids = ids_of(12)
    options: dict[str, Any] = {"max_new_tokens": 24, "do_sample": False, "attention_mask": torch.ones_like(ids)}
    assert torch.equal(model.generate(ids, assistant_model=assistant, **options), model.generate(ids, **options))


def test_without_recording_it_is_refused_in_words() -> None:
    model = make("llama")
    cache = LLNCache.of(model)
    feed(model, cache, ids_of(10))
    with pytest.raises(ValueError, match=r"activate_past_recording\(\) before those tokens come"):
        cache.crop(-1)
    cache.activate_past_recording()
    with pytest.raises(ValueError, match="taken out of it only where"):
        cache.crop(-1)
    with pytest.raises(ValueError, match="crop takes a negative number"):
        cache.layers[0].crop(3)


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_a_snapshot_goes_on_with_the_same_bits_after_a_thousand_tokens(attention: str) -> None:
    model, after = make("llama", attention), ids_of(5, seed=1)
    cache = LLNCache.of(model)
    feed(model, cache, ids_of(30))
    kept = cache.snapshot()
    wanted = feed(model, cache, after)
    for seed in range(4):
        feed(model, cache, ids_of(250, seed))
    assert torch.equal(feed(model, kept, after), wanted)


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_one_prompt_for_many_continuations(attention: str) -> None:
    model = make("llama", attention)
    cache = LLNCache.of(model)
    feed(model, cache, ids_of(30))
    after = torch.cat([ids_of(5, seed) for seed in (1, 2, 3)])
    alone = torch.cat([feed(model, cache.snapshot(), row[None]) for row in after])
    cache.batch_repeat_interleave(3)
    torch.testing.assert_close(feed(model, cache, after), alone, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_a_saved_prompt_goes_on_with_the_same_bits(attention: str, tmp_path: Path) -> None:
    model, after = make("llama", attention), ids_of(5, seed=1)
    cache, longer = LLNCache.of(model), LLNCache.of(model)
    feed(model, cache, ids_of(30))
    feed(model, longer, ids_of(300))
    path = cache.save(tmp_path / "prompt.safetensors")
    loaded = LLNCache.load(path, model)
    assert loaded.get_seq_length() == 30
    assert torch.equal(feed(model, loaded, after), feed(model, cache, after))
    sizes = {path.stat().st_size, longer.save(tmp_path / "longer.safetensors").stat().st_size}
    assert max(sizes) - min(sizes) < 64  # of the header, which names the number of tokens


def test_files_of_something_else_are_refused(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    model = make("llama")
    save_file({"x": torch.zeros(1)}, tmp_path / "other.safetensors")
    with pytest.raises(ValueError, match="not a saved cache that this release reads"):
        LLNCache.load(tmp_path / "other.safetensors", model)
    (tmp_path / "damaged.safetensors").write_bytes(b"\x00" * 20)
    with pytest.raises(ValueError, match="damaged or not a safetensors file"):
        LLNCache.load(tmp_path / "damaged.safetensors", model)
    cache = LLNCache.of(model)
    feed(model, cache, inputs("llama", length=8)["input_ids"])
    cache.layers.append(cache.layers[0])
    with pytest.raises(ValueError, match="it is of another model"):
        LLNCache.load(cache.save(tmp_path / "three.safetensors"), model)


@pytest.mark.parametrize("name", HYBRIDS)
def test_windows_and_recurrences_are_copied_repeated_and_saved_with_the_states(name: str, tmp_path: Path) -> None:
    """The prompt is longer than the window and than any block."""
    model, after = hybrid(name), torch.cat([ids_of(5, seed) for seed in (1, 2, 3)])
    cache = LLNCache.of(model)
    feed(model, cache, ids_of(30))
    path = cache.save(tmp_path / "prompt.safetensors")
    kept = cache.snapshot()
    alone = torch.cat([feed(model, cache.snapshot(), row[None]) for row in after])
    feed(model, cache, ids_of(100, seed=4))
    assert torch.equal(feed(model, LLNCache.load(path, model), after[:1]), alone[:1])
    kept.batch_repeat_interleave(3)
    torch.testing.assert_close(feed(model, kept, after), alone, rtol=1e-4, atol=1e-5)
    swapped, order, token = kept.snapshot(), torch.tensor([2, 0, 1]), ids_of(1).repeat(3, 1)
    swapped.batch_select_indices(order)
    torch.testing.assert_close(feed(model, swapped, token), feed(model, kept, token)[order], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", [*WINDOWS, "lfm2"])
def test_tokens_taken_back_leave_windows_and_convolutions_as_they_were(name: str) -> None:
    model, ids, after = hybrid(name), ids_of(40), ids_of(9, seed=1)
    cache, wanted = LLNCache.of(model), LLNCache.of(model)
    cache.activate_past_recording()
    for a, b in ((0, 20), (20, 33), (33, 40)):
        feed(model, cache, ids[:, a:b])
    cache.crop(-9)
    feed(model, wanted, ids[:, :31])
    torch.testing.assert_close(feed(model, cache, after), feed(model, wanted, after), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("how", ["prompt lookup", "assistant"])
@pytest.mark.parametrize("name", [*WINDOWS, "lfm2"])
def test_assisted_decoding_in_models_with_other_layers(name: str, how: str) -> None:
    model, ids = hybrid(name), ids_of(12).repeat(1, 3)
    options: dict[str, Any] = {"max_new_tokens": 16, "do_sample": False, "attention_mask": torch.ones_like(ids)}
    assistant = hybrid(name)
    torch.manual_seed(5)
    with torch.no_grad():
        for parameter in assistant.parameters():
            parameter.add_(0.02 * torch.randn_like(parameter))
    help_of: dict[str, Any] = (
        {"prompt_lookup_num_tokens": 4} if how == "prompt lookup" else {"assistant_model": assistant}
    )
    assert torch.equal(model.generate(ids, **help_of, **options), model.generate(ids, **options))


@pytest.mark.parametrize("name", ["jamba", "qwen3_next", "zamba2"])
def test_a_recurrence_is_not_taken_back_by_half(name: str) -> None:
    """transformers' layer would crop its convolution and leave its sums as they are."""
    model, after = hybrid(name), ids_of(5, seed=1)
    cache = LLNCache.of(model)
    feed(model, cache, ids_of(20))
    kept = cache.snapshot()
    with pytest.raises(ValueError, match=r"layers that run a recurrence.*cache\.snapshot"):
        cache.crop(-3)
    assert torch.equal(feed(model, cache, after), feed(model, kept, after))


def test_a_converted_model_with_a_softmax_layer_is_saved_with_its_keys(tmp_path: Path) -> None:
    model = make("llama", "sdpa")
    model.config.lln = None
    convert(model, calibrate=[inputs("llama")], keep_softmax=[0], block_size=8)
    cache, after = LLNCache.of(model), ids_of(5, seed=1)
    feed(model, cache, ids_of(30))
    path = cache.save(tmp_path / "prompt.safetensors")
    assert torch.equal(feed(model, LLNCache.load(path, model), after), feed(model, cache, after))
    with pytest.raises(
        ValueError, match="layer 0 of .* holds keys, this model's keeps state: .* other layers were converted"
    ):
        LLNCache.load(path, make("llama"))


def test_files_of_the_first_version_are_read(tmp_path: Path) -> None:
    """It knew layers of linear attention alone, and did not name their parts."""
    import json

    from safetensors import safe_open
    from safetensors.torch import save_file

    model, after = make("llama"), ids_of(5, seed=1)
    cache = LLNCache.of(model)
    feed(model, cache, ids_of(30))
    with safe_open(cache.save(tmp_path / "now.safetensors"), framework="pt") as file:
        metadata, tensors = file.metadata(), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    layers = [{name: told[name] for name in ("seen", "kind")} for told in json.loads(metadata["layers"])]
    first = {"format": "lln-cache", "version": "1", "layers": json.dumps(layers)}
    save_file(tensors, tmp_path / "then.safetensors", first)
    loaded = LLNCache.load(tmp_path / "then.safetensors", model)
    assert torch.equal(feed(model, loaded, after), feed(model, cache, after))
