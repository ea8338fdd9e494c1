"""How far a masked language model looks: windows cut out of a text are what they should be, and nothing else changes."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from lln.zoo import card, names
from lln_lab.experiments import context, fig8
from lln_lab.experiments.masking import Masking, tokenizer_of, windows
from lln_lab.experiments.models.roberta import MaskedLanguageModel, Size, configuration
from lln_lab.experiments.training.stream import Held

LENGTH = 64
SIZE = Size(layers=2, width=32, heads=2, feed_forward=48, length=LENGTH, dropout=0.1)
TEXTS = [f"document {i}: {' '.join(str((i * j) % 17) for j in range(60))}\n" for i in range(20)]


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> tuple[torch.Tensor, Masking]:
    tokenizer = tokenizer_of(TEXTS, tmp_path_factory.mktemp("context") / "tokenizer", 300)
    return windows(TEXTS, tokenizer, LENGTH)[:6], Masking(tokenizer)


def made(name: str, masking: Masking, size: Size = SIZE) -> MaskedLanguageModel:
    torch.manual_seed(0)
    return MaskedLanguageModel(configuration(size, masking.vocabulary), name).eval()


@pytest.mark.parametrize("name", [name for name in names() if card(name).bidirectional])
def test_every_member_is_measured(name: str, text: tuple[torch.Tensor, Masking]) -> None:
    found = context.measured(made(name, text[1]), *text)
    assert list(found["within"]) == ["0", "1", "4", "16", "all"] and list(found["nearest"]) == ["1", "2", "3", "4"]
    values = torch.tensor([*found["within"].values(), *found["nearest"].values()])
    assert torch.isfinite(values).all() and 5 * context.ASKED < found["asked"] <= 6 * context.ASKED


@pytest.mark.parametrize("name", ["softmax", "lln_diag", "near_far"])
@torch.no_grad()
def test_a_reach_over_the_whole_window_is_the_whole_window(name: str, text: tuple[torch.Tensor, Masking]) -> None:
    """Positions and padding at either end are right: the first token, the last, and one in the middle."""
    held_out, masking = text
    model, places = made(name, masking, replace(SIZE, length=2 * LENGTH + 1)), torch.tensor([0, 30, LENGTH - 1])
    ids = Held(held_out, masking)[0]["input_ids"].expand(3, -1)  # type: ignore[arg-type]
    whole = model.lm_head(model.roberta(ids).last_hidden_state)[torch.arange(3), places]
    torch.testing.assert_close(context._around(model, ids, places, LENGTH), whole, rtol=1e-3, atol=1e-4)


@torch.no_grad()
def test_what_is_beyond_the_reach_does_not_count_and_what_is_within_does(text: tuple[torch.Tensor, Masking]) -> None:
    held_out, masking = text
    model, place = made("softmax", masking), torch.tensor([30])
    other = held_out[:1].clone()
    other[0, 35] = held_out[0, 35] + 1
    near, far = ([context._around(model, ids, place, reach) for ids in (held_out[:1], other)] for reach in (5, 4))
    assert torch.equal(*far) and not torch.equal(*near)


def test_asked_tokens_are_shown_as_the_mask_and_spread_over_the_window() -> None:
    shown = torch.zeros(2, 100, dtype=torch.bool)
    shown[0, 1::5], shown[1, [3, 7]] = True, True
    rows, places = context.asked(shown)
    assert shown[rows, places].all() and (rows == 0).sum() == context.ASKED and places[rows == 1].tolist() == [3, 7]
    assert places[rows == 0].min() < 10 and places[rows == 0].max() > 80 and len(set(places[rows == 0].tolist())) == 8


def test_a_model_that_knows_neighbours_only_is_found_out(text: tuple[torch.Tensor, Masking]) -> None:
    """A head that reads the token before: exact next to a visible token, lost inside a run of masks."""
    _, masking = text
    counting = (torch.arange(LENGTH) % 40 + 10).expand(4, -1)  # each token is the one before it plus one, mostly

    class Neighbour(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(1))

        def roberta(self, ids: torch.Tensor, **_: Any) -> Any:
            known = (ids.roll(1, 1) + 1).where(ids.roll(1, 1) != masking.mask, 0)
            hidden = 20.0 * F.one_hot(known, masking.vocabulary).float()
            return type("Output", (), {"last_hidden_state": hidden})

        def lm_head(self, hidden: torch.Tensor) -> torch.Tensor:
            return hidden

    found = context.nearest(Neighbour(), counting, masking.mask)  # type: ignore[arg-type]
    assert found["1"] == pytest.approx(10, abs=1.5), "one of the two ends of a run has its neighbour before it"
    assert all(found[d] == pytest.approx(20, abs=1.5) for d in ("2", "3", "4"))


def test_fig8_notes_it_with_the_trained_weights_and_changes_nothing_else(tmp_path: Path) -> None:
    small = replace(fig8.PRESETS["cpu"].size, layers=1, width=32, heads=2, feed_forward=48, length=LENGTH)
    budget = replace(fig8.PRESETS["cpu"].budget.shortened(3), watch_every=None)
    settings = fig8.Settings(small, budget, 300, validation_rows=8, contestants=("softmax", "performer"))
    source = tmp_path / "text"
    source.mkdir()
    for name, part in (("train", TEXTS[:14]), ("valid", TEXTS[14:])):
        (source / f"{name}.txt").write_text("\n".join(part))
    plain = fig8.run(settings, tmp_path, source=str(source))
    found = fig8.run(settings, tmp_path, source=str(source), by_context=True)
    added = {"context", "provenance"}  # the second comes with a result that is read
    assert [{k: x for k, x in run.items() if k not in added} for run in found["runs"]] == plain["runs"]
    assert found["tables"][0] == plain["tables"][0] and found["verdicts"] == plain["verdicts"]
    (table,) = found["tables"][1:]
    assert all(len(row) == len(table["columns"]) for row in table["rows"]) and len(table["rows"]) == 2

    bpe, _, held_out, _ = fig8.corpus(settings, tmp_path, str(source), None)
    masking = Masking(bpe)
    rows = [Held(held_out, masking)[i] for i in range(len(held_out))]  # type: ignore[arg-type]
    for run in found["runs"]:
        torch.manual_seed(run["seed"])
        model = MaskedLanguageModel(configuration(small, masking.vocabulary), run["attention"]).eval()
        name = f"mlm_{run['attention']}_seed0"
        context.load(model, tmp_path / name / "checkpoint-3" / "model.safetensors")
        with torch.no_grad():
            loss = model(**{key: torch.stack([row[key] for row in rows]) for key in rows[0]}).loss
        assert float(loss) == pytest.approx(run["evaluation"]["loss"], abs=1e-4), "not the weights of the run"
    assert "context" not in context.noted(plain["runs"][0], tmp_path / "nowhere", lambda: model, held_out, masking)
    assert context.table(plain["runs"]) == []
