"""The measurements of near-far attention, on tiny random models and few draws."""

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    BertConfig,
    ElectraConfig,
    LlamaConfig,
    PreTrainedTokenizerFast,
)

from lln.hf import LayerShape, LLNParameters
from lln_lab.bench import near_far, near_far_suspects, near_far_terms
from lln_lab.bench.attention_of import attention_of
from lln_lab.bench.near_far_terms_plot import draw
from lln_lab.bench.token_losses import STRETCH, interval, parts
from lln_lab.experiments.figure import save

SIZE: dict[str, Any] = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48, "vocab_size": 8,
    "max_position_embeddings": 512, "initializer_range": 0.5,
}  # fmt: skip


def saved(kind: Any, config: Any, folder: Path) -> Path:
    words = Tokenizer(models.WordLevel({"[PAD]": 0, "[UNK]": 1, **{c: i + 2 for i, c in enumerate("abcdef")}}, "[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="[PAD]", unk_token="[UNK]")
    torch.manual_seed(0)
    kind.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def encoder(tmp_path: Path) -> Path:
    return saved(AutoModel, BertConfig(**SIZE), tmp_path / "model")


@pytest.fixture
def causal(tmp_path: Path) -> Path:
    return saved(AutoModelForCausalLM, LlamaConfig(**SIZE, num_key_value_heads=2), tmp_path / "causal")


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    generator = torch.Generator().manual_seed(0)
    lines = []
    for length in (600, 600, 600, 600, 150, 150, 150, 150):
        lines.append(" ".join("abcdef"[i] for i in torch.randint(6, (length,), generator=generator).tolist()))
    (tmp_path / "texts.txt").write_text("\n".join(lines))
    return tmp_path / "texts.txt"


def test_fitted_weights_leave_less_error_than_neutral_ones_and_the_file_has_every_row(
    encoder: Path, texts: Path, tmp_path: Path
) -> None:
    plan = near_far.Plan(str(encoder), str(texts), str(texts), texts=1, test_texts=2)
    near_far.run(plan, tmp_path / "found.json", lambda what: None)
    rows = json.loads((tmp_path / "found.json").read_text())["rows"]
    assert len(rows) == sum(len(bases) for _, bases in near_far.ROWS)
    errors = {row["basis"]: row["error_of_each_layer"] for row in rows if row["near"] == {"block_size": 64}}
    for fitted, neutral in zip(errors[near_far.ALL], errors[near_far.NOT_FITTED], strict=True):
        assert fitted <= neutral
    assert all(0 < row["long"]["cosine"] <= 1.00001 for row in rows)


def test_texts_longer_than_the_encoders_positions_are_read_with_positions_stretched(
    encoder: Path, texts: Path, tmp_path: Path
) -> None:
    plan = near_far.Plan(
        str(encoder), str(texts), str(texts), texts=1, test_texts=2, length=600, bases=(near_far.CHOSEN,)
    )
    result = near_far.run(plan, tmp_path / "found.json", lambda what: None)
    assert (result["length"], result["positions"]) == (600, 512)
    assert result["tested_on"]["long"] == 2 and all(row["long"]["cosine"] > 0.5 for row in result["rows"])


def test_positions_that_cannot_be_stretched_are_refused(texts: Path, tmp_path: Path) -> None:
    electra = saved(AutoModel, ElectraConfig(**SIZE, embedding_size=32), tmp_path / "electra")
    plan = near_far.Plan(str(electra), str(texts), str(texts), length=600)
    with pytest.raises(ValueError, match="electra, has 512 positions.*--length of at most 512"):
        near_far.run(plan, tmp_path / "found.json", lambda what: None)


def test_perplexity_of_a_causal_model_beside_softmax(causal: Path, texts: Path, tmp_path: Path) -> None:
    plan = near_far.Plan(str(causal), str(texts), str(texts), texts=2, test_texts=2, length=256)
    result = near_far.run(plan, tmp_path / "found.json", lambda what: None)
    assert list(result["softmax"]) == ["all", "from 128"] and result["tested_on"] == {"long": 2}
    alone, *others = result["rows"]
    assert alone["basis"] == near_far.NEAR_ALONE and len(others) == 2
    assert alone["by_position"]["all"]["log_ratio_to_first_row"] == {"mean": 0.0, "half_width": 0.0}
    assert all(row["by_position"]["all"]["perplexity"] > 1 for row in result["rows"])
    model = AutoModelForCausalLM.from_pretrained(causal).eval()
    ids = near_far.TextFile(texts, 256).to_measure_on(texts).batches(model, near_far.load(str(causal))[0], 2, 1)["long"]
    with torch.no_grad():
        loss = sum(float(model(**batch, labels=batch["input_ids"]).loss) for batch in ids) / 2
    assert result["softmax"]["all"] == pytest.approx(math.exp(loss), rel=1e-4)


def test_an_interval_is_of_stretches_and_not_of_tokens() -> None:
    """Losses that are alike within a stretch: as many independent numbers as stretches."""
    steps = torch.randn(4, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    found = interval(steps.repeat_interleave(STRETCH, dim=1))
    assert found["mean"] == pytest.approx(float(steps.mean()))
    assert found["half_width"] == pytest.approx(1.96 * float(steps.std()) / 32**0.5)


@pytest.mark.parametrize("variant", ["the operation", "log-normal mean"])
def test_the_dense_form_of_the_suspects_is_the_operation(variant: str) -> None:
    own = LLNParameters(LayerShape(4, 2, 8, near_far=True))
    own.set(feature_bias=torch.randn(4, 8), beta=torch.tensor([0.5, 1.5]))
    q, k, v = 3 * torch.randn(1, 4, 90, 8), torch.randn(1, 2, 90, 8), torch.randn(1, 2, 90, 8)
    given = (SimpleNamespace(lln=own), q, k, v, 0.4, near_far_suspects.Plan("", "", "", block_size=8, first_tokens=3))
    dense = near_far_suspects.Scene(*given).parts(*near_far_suspects.VARIANTS[variant])
    layer = near_far_suspects.Layer(*given)
    for one, other in zip(dense, layer.parts(variant), strict=True):
        torch.testing.assert_close(one, other[0], rtol=1e-3, atol=1e-4)
    weights = torch.randn(4, 4)
    mixed = dense[0] + torch.einsum("hndi,hi->hnd", dense[1], weights)
    torch.testing.assert_close(mixed, layer.output(variant, weights)[0], rtol=1e-3, atol=1e-3)


def test_every_suspect_has_a_row_and_each_fit_is_nearer_than_near_alone(
    causal: Path, texts: Path, tmp_path: Path
) -> None:
    plan = near_far_suspects.Plan(
        str(causal), str(texts), str(texts), length=192, join=0, texts=1, test_texts=2, block_size=8
    )
    rows = near_far_suspects.run(plan, tmp_path / "found.json", lambda what: None)["rows"]
    errors = {row["variant"]: row["error"] for row in rows}
    assert list(errors) == [near_far_suspects.NEAR_ALONE, *near_far_suspects.VARIANTS]
    assert max(errors.values()) == errors[near_far_suspects.NEAR_ALONE]


def test_the_model_is_as_it_was_afterwards(encoder: Path) -> None:
    model = AutoModel.from_pretrained(encoder).eval()
    ids, before = torch.arange(8)[None], model.config._attn_implementation

    def softmax(module: Any, q: Tensor, k: Tensor, v: Tensor, mask: Any, **_: Any) -> tuple[Tensor, None]:
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).contiguous(), None

    with torch.no_grad():
        expected = model(ids).last_hidden_state
        with attention_of(model, softmax):
            torch.testing.assert_close(model(ids).last_hidden_state, expected)
        assert model.config._attn_implementation == before
        assert torch.equal(model(ids).last_hidden_state, expected)


def test_the_slope_is_most_of_the_output_of_gaussian_inputs(encoder: Path, texts: Path, tmp_path: Path) -> None:
    plan = near_far_terms.Plan(lengths=(256, 512), counts=(64,), model=str(encoder), data=str(texts), texts=1)
    result = near_far_terms.run(plan, lambda what: None)
    for row in result["gaussian"]:
        assert row["error"]["mean and slope by mass"] < row["error"]["mean by mass"]
    assert len(result["layers"]) == 2
    real = {(row["length"], row["factor"]): row["error"] for row in result["real"]}
    assert len(real) == 15, "three lengths, five factors on the scores"
    for name in ("mean by mass", "mean and slope by mass"):
        assert real[512, 0.25][name] < real[512, 4.0][name], "the flatter softmax is, the nearer its first orders are"
    assert real[128, 1.0] != real[256, 1.0]
    assert save(draw, result, tmp_path / "terms.png").stat().st_size > 1000


def test_losses_are_told_apart_by_position() -> None:
    of_token = torch.arange(1, 4608)[None]  # the loss of token i of 4,608, token 0 having none
    assert {name: (int(x.min()), int(x.max())) for name, x in parts(of_token).items()} == {
        "all": (1, 4607), "from 1,024": (1024, 4607), "from 2,304": (2304, 4607), "from 4,096": (4096, 4607)
    }  # fmt: skip
    assert list(parts(of_token[:, :511])) == ["all", "from 256"]
