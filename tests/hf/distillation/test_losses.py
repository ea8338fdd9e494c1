"""What a distilled model is to be close to, end to end."""

from typing import Any

import pytest
import torch
from transformers import BertForQuestionAnswering, BertForSequenceClassification
from transformers.modeling_outputs import BaseModelOutput

from lln.hf import convert, distil
from lln.hf.distillation.losses import Others, end_to_end_loss, others_of, pair_error, pooled
from tests.hf.models import CONFIGS, inputs, spread_out


def output(hidden: torch.Tensor) -> Any:
    return BaseModelOutput(last_hidden_state=hidden)


def batch(rows: int, length: int = 6) -> dict[str, torch.Tensor]:
    mask = torch.ones(rows, length, dtype=torch.long)
    mask[0, 4:] = 0
    return {"input_ids": torch.zeros(rows, length, dtype=torch.long), "attention_mask": mask}


def test_the_pair_error_is_that_of_cosines_over_their_variance() -> None:
    torch.manual_seed(0)
    embeddings, given = torch.randn(5, 8), torch.randn(2, 8)
    directions = torch.nn.functional.normalize(embeddings, dim=-1)
    pairs = torch.stack([directions[i] @ directions[j] for i in range(5) for j in range(i)])
    cosine = torch.nn.functional.cosine_similarity
    wanted = [cosine(embeddings[i], d, 0) - cosine(given[i], d, 0) for i in range(2) for d in directions]
    expected = torch.stack(wanted).square().mean() / pairs.var()
    others = others_of([output(embeddings[:, None])], [{}])
    assert others is not None
    torch.testing.assert_close(pair_error(given, embeddings[:2], others), expected)
    assert pair_error(3 * embeddings[:2], embeddings[:2], others) == pytest.approx(
        0, abs=1e-10
    )  # length does not count


def test_others_come_from_every_batch_without_its_padding() -> None:
    torch.manual_seed(0)
    hidden, batches = [torch.randn(2, 6, 8), torch.randn(3, 6, 8)], [batch(2), batch(3)]
    found = others_of([output(h) for h in hidden], batches)
    poisoned = [h.masked_fill(b["attention_mask"][..., None] == 0, 99.0) for h, b in zip(hidden, batches, strict=True)]
    same = others_of([output(h) for h in poisoned], batches)
    assert found is not None and same is not None and found.directions.shape == (5, 8)
    torch.testing.assert_close(found.directions, same.directions)


def test_two_texts_have_too_few_pairs() -> None:
    assert others_of([output(torch.randn(2, 3, 4))], [{}]) is None


def test_pairs_add_to_the_end_to_end_loss() -> None:
    torch.manual_seed(0)
    given, wanted = torch.randn(3, 6, 8), torch.randn(3, 6, 8)
    others = others_of([output(wanted)], [batch(3)])
    assert isinstance(others, Others)
    alone, together = (end_to_end_loss(lambda **_: output(given), output(wanted), batch(3), x) for x in (None, others))
    rows = batch(3)["attention_mask"].bool()
    torch.testing.assert_close(together - alone, pair_error(pooled(given, rows), pooled(wanted, rows), others))


@pytest.mark.parametrize("labels", [1, 3])
def test_a_classifier_follows_what_the_original_says(labels: int) -> None:
    config = CONFIGS["bert"]()
    config.num_labels = labels
    torch.manual_seed(0)
    original = spread_out(BertForSequenceClassification(config).eval())

    def told(model: Any) -> torch.Tensor:
        """What the classifier says: probabilities, which a shift of all logits does not change, or a number."""
        with torch.no_grad():
            logits = model(**inputs("bert")).logits
        return logits if labels == 1 else logits.softmax(-1)

    wanted = told(original)
    model = convert(original, calibrate=[inputs("bert")], block_size=8)
    before = float((told(model) - wanted).norm())
    distil(model, [inputs("bert")], steps=30, stage="end_to_end", progress=False)
    assert float((told(model) - wanted).norm()) < 0.7 * before


def test_outputs_that_cannot_be_compared_are_refused_in_words() -> None:
    model = convert(BertForQuestionAnswering(CONFIGS["bert"]()).eval(), calibrate=[inputs("bert")], block_size=8)
    with pytest.raises(ValueError, match="has neither"):
        distil(model, [inputs("bert")], steps=3, stage="end_to_end", progress=False)
