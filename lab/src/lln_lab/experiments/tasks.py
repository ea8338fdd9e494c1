"""Rows of a task -> samples of a model: tokens padded to the longest of the batch, pictures with a random flip and crop."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from tokenizers import ByteLevelBPETokenizer
from torch import Tensor

from lln_lab.experiments.masking import BEGIN, END

Row = dict[str, Any]


def ids_and_label(row: Row, _: torch.Generator) -> Row:
    """Long Range Arena: the row's tokens as they are."""
    return {**row, "labels": row["label"]}


def text_and_label(tokenizer: ByteLevelBPETokenizer, length: int) -> Callable[[Row, torch.Generator], Row]:
    """GLUE: <s> text </s>, or <s> text </s> </s> pair </s> as RoBERTa has it; the longer of the two is cut first."""

    def make(row: Row, _: torch.Generator) -> Row:
        first = tokenizer.encode(row["text"]).ids
        second = None if row["pair"] is None else tokenizer.encode(row["pair"]).ids
        room = length - (2 if second is None else 4)
        while len(first) + len(second or ()) > room:
            longer = first if second is None or len(first) >= len(second) else second
            longer.pop()
        tokens = [BEGIN, *first, END] if second is None else [BEGIN, *first, END, END, *second, END]
        return {"input_ids": torch.tensor(tokens), "labels": row["label"]}

    return make


def padded(padding: int) -> Callable[[list[Row]], Row]:
    """Batches of rows of different lengths: input_ids, attention_mask, labels (and pair_ids, pair_mask)."""

    def collate(rows: list[Row]) -> Row:
        batch = dict(zip(("input_ids", "attention_mask"), _pad([r["input_ids"] for r in rows], padding), strict=True))
        batch["labels"] = torch.tensor([r["labels"] for r in rows])
        if "pair_ids" in rows[0]:
            batch["pair_ids"], batch["pair_mask"] = _pad([r["pair_ids"] for r in rows], padding)
        return batch

    return collate


def _pad(rows: list[Tensor], padding: int) -> tuple[Tensor, Tensor]:
    ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=padding)
    lengths = torch.tensor([len(row) for row in rows])
    return ids, torch.arange(ids.shape[1]) < lengths[:, None]


def picture(row: Row, _: torch.Generator) -> Row:
    """(3, H, W) in -1 ... 1."""
    return {"pixel_values": row["image"].float() / 127.5 - 1.0, "labels": row["label"]}


def augmented_picture(row: Row, generator: torch.Generator) -> Row:
    """A random crop, one eighth smaller on either side, and a random flip."""
    pixels = row["image"]
    edge = pixels.shape[-1] // 8
    wide = F.pad(pixels.float()[None], (edge,) * 4, mode="reflect")[0]
    top, left = (int(torch.randint(2 * edge + 1, (1,), generator=generator)) for _ in range(2))
    cut = wide[:, top : top + pixels.shape[1], left : left + pixels.shape[2]]
    if torch.rand(1, generator=generator) < 0.5:
        cut = cut.flip(-1)
    return {"pixel_values": cut / 127.5 - 1.0, "labels": row["label"]}
