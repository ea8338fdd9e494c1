"""Texts of a file for calibration, training and measuring: a random choice of long and short ones, as batches."""

import json
import lzma
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from lln.hf.conversion.batches import batches_of

SHORT = 3  # so many short texts have no more tokens than one long text


@dataclass(frozen=True)
class TextFile:
    """path: plain text, one text a line, or JSON lines with a field `text`; .xz is unpacked.

    max_length: tokens a text is cut at; texts that fill it are long, those of at most a third of it short.
    join: lines are joined until a text has so many characters, for files of paragraphs; 0 leaves them as they are.
    seed: of the choice, which is random because files are often sorted.
    from_end: choose from the other end of that random order.
    reserve: so many long and as many short texts at the other end are not chosen, nor others that read the same.
    """

    path: Path
    max_length: int = 512
    join: int = 0
    seed: int = 0
    from_end: bool = False
    reserve: int = 0

    def leaving(self, path: Path, count: int) -> "TextFile":
        """Texts to train on, none of which is among the `count` that `to_measure_on(path)` chooses."""
        return replace(self, reserve=count if self._is(path) else 0)

    def to_measure_on(self, path: Path) -> "TextFile":
        """The texts of another file, or of the same one those that are left for it."""
        return replace(self, path=path, from_end=self._is(path), reserve=0)

    def _is(self, path: Path) -> bool:
        return path.resolve() == self.path.resolve()

    def read(self) -> Iterator[str]:
        as_json = self.path.name.removesuffix(".xz").endswith((".jsonl", ".json"))
        parts: list[str] = []
        with lzma.open(self.path, "rt") if self.path.suffix == ".xz" else self.path.open() as lines:
            for line in lines:
                text = json.loads(line)["text"] if as_json else line.strip()
                if text:
                    parts.append(text)
                    if sum(map(len, parts)) >= self.join:
                        yield "\n".join(parts)
                        parts = []
        if parts:
            yield "\n".join(parts)

    def choose(self, tokenizer: Any, count: int) -> tuple[list[str], list[str]]:
        """At most `count` long texts and as many short ones."""
        texts = list(self.read())
        random.Random(self.seed).shuffle(texts)
        if self.reserve:
            left = replace(self, from_end=True, reserve=0).choose(tokenizer, self.reserve)
            texts = [text for text in texts if text not in {*left[0], *left[1]}]
        long: list[str] = []
        short: list[str] = []
        for text in reversed(texts) if self.from_end else texts:
            tokens = len(tokenizer(text, truncation=True, max_length=self.max_length)["input_ids"])
            if tokens == self.max_length and len(long) < count:
                long.append(text)
            elif tokens <= self.max_length // SHORT and len(short) < count:
                short.append(text)
            if len(long) == len(short) == count:
                break
        return long, short

    def batches(
        self, model: Any, tokenizer: Any, count: int, batch_size: int = 4
    ) -> dict[str, list[dict[str, Tensor]]]:
        """'long' and 'short' batches of `choose`, in batches of their own, so that little is padding.

        batch_size: of long texts; of short ones three times as many, so that every batch has about as many tokens.
        """
        long, short = self.choose(tokenizer, count)
        sizes = {"long": (long, batch_size), "short": (short, SHORT * batch_size)}
        found = {n: batches_of(x, model, tokenizer, self.max_length, size) for n, (x, size) in sizes.items() if x}
        if not found:
            besides = f", besides the {self.reserve} of each to measure on" if self.reserve else ""
            raise ValueError(
                f"{self.path} has no text that fills {self.max_length} tokens and none of at most "
                f"{self.max_length // SHORT}{besides}: give other texts, another length, or join lines"
            )
        return {
            name: [{k: b[k] for k in ("input_ids", "attention_mask")} for b in batches]
            for name, batches in found.items()
        }
