"""What was trained with LLN is loaded with LLN, and a folder that needs lln.hf does not load as softmax without it."""

import copy
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    BertConfig,
    BertForSequenceClassification,
    BertModel,
    CLIPConfig,
    CLIPModel,
    CLIPTextModel,
    EncoderDecoderConfig,
    EncoderDecoderModel,
    Trainer,
    TrainingArguments,
)

from lln.hf import convert
from lln.hf.modules import attention_modules
from tests.hf.models import CAUSAL, FAMILIES, inputs, make, output

_SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}


def _kind(family: str) -> Any:
    return AutoModelForCausalLM if family in CAUSAL else AutoModel


def _clip_config() -> CLIPConfig:
    return CLIPConfig(
        text_config={**_SIZES, "vocab_size": 40, "max_position_embeddings": 32, "eos_token_id": 2, "bos_token_id": 1},
        vision_config={**_SIZES, "image_size": 32, "patch_size": 8},
        projection_dim=16,
    )


def _attentions(model: Any) -> set[str]:
    return {module.config._attn_implementation for module in attention_modules(model)}


@pytest.mark.parametrize("attention", ["lln_diag", "lln"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_trained_model_comes_back_with_its_attention(family: str, attention: str, tmp_path: Path) -> None:
    model = make(family, attention)
    model.save_pretrained(tmp_path)
    loaded = _kind(family).from_pretrained(tmp_path).eval()
    assert loaded.config._attn_implementation == attention
    with torch.no_grad():
        assert torch.equal(output(loaded, **inputs(family)), output(model, **inputs(family)))


def test_members_of_the_zoo_come_back_too(tmp_path: Path) -> None:
    make("bert", "performer").save_pretrained(tmp_path)
    assert AutoModel.from_pretrained(tmp_path).config._attn_implementation == "performer"


def test_what_trainer_saves_is_loaded_as_it_was_trained(tmp_path: Path) -> None:
    """Pretrained softmax weights, trained with LLN, saved by Trainer, loaded by a plain from_pretrained."""
    torch.manual_seed(0)
    BertForSequenceClassification(BertConfig(**_SIZES, vocab_size=40)).save_pretrained(tmp_path / "pretrained")
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path / "pretrained", attn_implementation="lln_diag")
    ids = inputs("bert", batch=4, length=80)["input_ids"]
    rows = [{"input_ids": x, "labels": i % 2} for i, x in enumerate(ids)]
    arguments = TrainingArguments(str(tmp_path / "run"), max_steps=2, use_cpu=True, report_to=[], disable_tqdm=True)
    trainer = Trainer(model, arguments, train_dataset=rows)  # type: ignore[arg-type]
    trainer.train()
    trainer.save_model(str(tmp_path / "saved"))
    for folder in (tmp_path / "saved", tmp_path / "run" / "checkpoint-2"):
        for kind in (AutoModelForSequenceClassification, BertForSequenceClassification):
            loaded = kind.from_pretrained(folder).eval()
            assert loaded.config._attn_implementation == "lln_diag"
            with torch.no_grad():
                assert torch.equal(loaded(ids).logits, model.eval()(ids).logits)


OPENED_BY = {
    "trained, by its Auto class": ("trained", "AutoModel.from_pretrained(folder)"),
    "trained, by its own class": ("trained", "BertModel.from_pretrained(folder)"),
    "trained, from its config": ("trained", "AutoModel.from_config(AutoConfig.from_pretrained(folder))"),
    "converted": ("converted", "AutoModel.from_pretrained(folder)"),
    "all parts": ("all parts", "AutoModel.from_pretrained(folder)"),
    "one of its parts": ("one part", "AutoModel.from_pretrained(folder)"),
    "that part alone": ("one part", "CLIPTextModel.from_pretrained(folder)"),
}


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What a process that has not imported lln.hf says to each folder; it does import it in the end."""
    root = tmp_path_factory.mktemp("saved")
    make("bert").save_pretrained(root / "trained")
    model = make("bert", "sdpa")
    del model.config.lln
    convert(model, calibrate=[inputs("bert")], block_size=8).save_pretrained(root / "converted")
    for folder, attention in {"all parts": "lln_diag", "one part": {"text_config": "lln"}}.items():
        CLIPModel._from_config(_clip_config(), attn_implementation=attention).save_pretrained(root / folder)
    program = f"""
import json
from transformers import AutoConfig, AutoModel, BertModel, CLIPTextModel

said = {{}}
for name, (folder, opened_by) in json.loads({json.dumps(OPENED_BY)!r}).items():
    try:
        eval(opened_by, globals(), {{"folder": {str(root)!r} + "/" + folder}})
        said[name] = "loaded"
    except Exception as refused:
        said[name] = f"{{type(refused).__name__}}: {{refused}}"
config = AutoConfig.from_pretrained({str(root / "trained")!r})
import lln.hf
said["later"] = AutoModel.from_config(config).config._attn_implementation
print(json.dumps(said))
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    found: dict[str, str] = json.loads(ran.stdout)
    return found


@pytest.mark.parametrize("name", OPENED_BY)
def test_without_lln_hf_the_folder_does_not_load(name: str, opened: dict[str, str]) -> None:
    assert opened[name].startswith("ValueError: Specified `attn_implementation=")
    assert "(import lln.hf)" in opened[name]


def test_lln_hf_may_be_imported_after_the_config_was_read(opened: dict[str, str]) -> None:
    assert opened["later"] == "lln_diag"


def test_every_part_of_a_model_comes_back(tmp_path: Path) -> None:
    model = CLIPModel._from_config(_clip_config(), attn_implementation="lln_diag")
    model.save_pretrained(tmp_path)
    for kind in (AutoModel, CLIPModel, CLIPTextModel):
        assert _attentions(kind.from_pretrained(tmp_path)) == {"lln_diag"}


def test_parts_may_differ(tmp_path: Path) -> None:
    model = CLIPModel._from_config(_clip_config(), attn_implementation="sdpa")
    model.set_attn_implementation({"vision_config": "lln_diag"})
    model.save_pretrained(tmp_path)
    loaded = AutoModel.from_pretrained(tmp_path)
    assert loaded.vision_model.config._attn_implementation == "lln_diag"
    assert _attentions(loaded.text_model) == {"sdpa"}
    with pytest.warns(UserWarning, match="'eager' was asked for"):
        softmax = AutoModel.from_pretrained(tmp_path, attn_implementation="eager")
    assert _attentions(softmax) == {"eager"}


def test_an_encoder_with_a_decoder_comes_back(tmp_path: Path) -> None:
    options = {"lln": {"alpha": 2.0, "beta": 2.0}}
    encoder = BertConfig(**_SIZES, vocab_size=40, **options)
    decoder = BertConfig(**_SIZES, vocab_size=40, is_decoder=True, add_cross_attention=True, **options)
    config = EncoderDecoderConfig.from_encoder_decoder_configs(encoder, decoder)
    config._attn_implementation = "lln_diag"
    model = EncoderDecoderModel(config=config)
    model.save_pretrained(tmp_path)
    assert _attentions(EncoderDecoderModel.from_pretrained(tmp_path)) == {"lln_diag"}
    with pytest.warns(UserWarning, match="'sdpa' was asked for"):
        assert _attentions(EncoderDecoderModel.from_pretrained(tmp_path, attn_implementation="sdpa")) == {"sdpa"}


@pytest.mark.parametrize("asked", ["sdpa", "eager"])
@pytest.mark.parametrize("kind", [AutoModel, BertModel])
def test_the_callers_word_comes_first_and_is_remarked_on(kind: Any, asked: str, tmp_path: Path) -> None:
    make("bert").save_pretrained(tmp_path)
    with pytest.warns(UserWarning, match=f"saved with attn_implementation='lln_diag', and '{asked}' was asked for"):
        loaded = kind.from_pretrained(tmp_path, attn_implementation=asked)
    assert loaded.config._attn_implementation == asked
    assert kind.from_pretrained(tmp_path, attn_implementation="lln").config._attn_implementation == "lln"
    assert kind.from_pretrained(tmp_path, attn_implementation=None).config._attn_implementation == "lln_diag"


@pytest.mark.parametrize("converted", [False, True])
def test_a_model_set_back_to_softmax_is_saved_as_softmax(converted: bool, tmp_path: Path) -> None:
    model = make("bert", "sdpa" if converted else "lln_diag")
    if converted:
        del model.config.lln
        convert(model, calibrate=[inputs("bert")], block_size=8)
    model.set_attn_implementation("sdpa")
    model.save_pretrained(tmp_path)
    assert "attn_implementation" not in json.loads((tmp_path / "config.json").read_text())
    loaded = AutoModel.from_pretrained(tmp_path).eval()
    assert loaded.config._attn_implementation == "sdpa"
    with torch.no_grad():
        assert torch.equal(output(loaded, **inputs("bert")), output(model, **inputs("bert")))
    if converted:  # what the conversion measured is still there
        loaded.set_attn_implementation("lln_diag")
        assert attention_modules(loaded)[0].lln is not None


def test_configs_carry_the_choice_wherever_they_go(tmp_path: Path) -> None:
    model = make("bert")
    model.config.save_pretrained(tmp_path)
    read = AutoConfig.from_pretrained(tmp_path)
    rebuilt = BertConfig(**model.config.to_dict())
    for config in (read, rebuilt, copy.deepcopy(read), BertConfig.from_dict(read.to_dict())):
        assert AutoModel.from_config(config).config._attn_implementation == "lln_diag"
    assert copy.deepcopy(model).config._attn_implementation == "lln_diag"
    assert AutoModel.from_config(read, attn_implementation="eager").config._attn_implementation == "eager"


def test_softmax_models_are_written_as_ever(tmp_path: Path) -> None:
    BertModel(BertConfig(**_SIZES, vocab_size=40)).save_pretrained(tmp_path)
    written = json.loads((tmp_path / "config.json").read_text())
    assert "attn_implementation" not in written and "lln" not in written


def test_folders_of_the_release_before_still_load(tmp_path: Path) -> None:
    """Without the key a trained folder says nothing of LLN: the caller names it, as before; a converted one does say."""
    model = make("bert")
    model.save_pretrained(tmp_path)
    written = json.loads((tmp_path / "config.json").read_text())
    del written["attn_implementation"], written["lln"]["version"]
    (tmp_path / "config.json").write_text(json.dumps(written))
    assert AutoModel.from_pretrained(tmp_path).config._attn_implementation == "sdpa"
    loaded = AutoModel.from_pretrained(tmp_path, attn_implementation="lln_diag").eval()
    with torch.no_grad():
        assert torch.equal(output(loaded, **inputs("bert")), output(model, **inputs("bert")))
