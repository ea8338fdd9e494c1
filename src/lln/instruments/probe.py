"""A probe watches the attention of a live model and writes a table: one row for each step, layer and head."""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from lln.instruments.capture import Captured, Recorder
from lln.instruments.measures import MEASURES, measure
from lln.instruments.table import Table

DEFAULT_MEASURES = ("temperature", "matching", "entropy", "gap", "bias")


class Probe:
    """Watches every `every`-th forward pass of a model, or those it is armed for.

        with Probe(model, every=50) as probe:
            train(model)
        probe.table.to_csv("attention.csv")

    Args:
        model: any module that attends by `scaled_dot_product_attention`, by a softmax over (B, H, N, N) scores, or by this
            package: Hugging Face models with attn_implementation 'sdpa', 'eager' or this package's.
        every: watch forward passes 0, every, 2 every, ...; None: only after `arm(step)`.
        layers: numbers in the order in which layers attend, or a regular expression on module names; None: all.
        heads: numbers of query heads; None: all.
        samples: how many samples of a batch are looked at; numbers are their mean.
        measures: names from `lln.instruments.measures.MEASURES`.
        rows: how many rows entropy and log-normality are taken from.
        path: a CSV file that grows with the table.

    Between watched passes it costs one call of a hook. It uses no random numbers but its own, so training with it gives bit for
    bit what training without it gives. It can stay attached: it is not part of the model's state.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        every: int | None = 1,
        layers: Sequence[int] | str | None = None,
        heads: Sequence[int] | None = None,
        samples: int = 1,
        measures: Iterable[str] = DEFAULT_MEASURES,
        rows: int = 64,
        path: str | Path | None = None,
    ) -> None:
        self.measures = tuple(measures)
        unknown = sorted(set(self.measures) - set(MEASURES))
        if unknown:
            raise ValueError(
                f"unknown measures {', '.join(map(repr, unknown))}; there are {', '.join(map(repr, MEASURES))}"
            )
        if every is not None and every < 1:
            raise ValueError(f"every must be at least 1, or None to watch only when armed, not {every}")
        if samples < 1:
            raise ValueError(f"samples must be at least 1, not {samples}")
        self.every, self.layers, self.heads = every, layers, heads
        self.samples, self.rows = samples, rows
        self.table = Table(path)
        self.passes = 0
        self._model = model
        self._armed: int | None = None
        self._stack: list[str] = []
        self._recorder: Recorder | None = None
        self._pass_hooks: list[Any] = []
        self._root_hooks: list[Any] = []

    def attach(self) -> "Probe":
        if not self._root_hooks:
            self._root_hooks = [
                self._model.register_forward_pre_hook(self._begin, prepend=True),
                self._model.register_forward_hook(self._end, always_call=True),
            ]
        return self

    def detach(self) -> None:
        self._stop_listening()
        for hook in self._root_hooks:
            hook.remove()
        self._root_hooks = []

    def __enter__(self) -> "Probe":
        return self.attach()

    def __exit__(self, *exc: Any) -> None:
        self.detach()

    def arm(self, step: int) -> None:
        """Watch the next forward pass and call it `step`."""
        self._armed = step

    def _begin(self, *_: Any) -> None:
        if self._recorder is not None:  # the model calls itself
            return
        due = self.every is not None and self.passes % self.every == 0
        step = self._armed if self._armed is not None else self.passes if due else None
        self.passes += 1
        if step is None:
            return
        self._step = step
        self._stack = [""]
        for name, module in self._model.named_modules():
            if name:
                self._pass_hooks.append(module.register_forward_pre_hook(self._entering(name), prepend=True))
                self._pass_hooks.append(module.register_forward_hook(self._leaving, always_call=True))
        self._recorder = Recorder(self.samples, lambda: self._stack[-1] if self._stack else None)
        self._recorder.__enter__()

    def _end(self, module: nn.Module, inputs: Any, output: Any) -> None:
        recorder = self._recorder
        if recorder is None or len(self._stack) > 1:
            return
        self._stop_listening()
        self._armed = None
        if output is not None:  # a forward pass that raised has no output and is not measured
            self._measure(recorder.calls)

    def _stop_listening(self) -> None:
        if self._recorder is not None:
            self._recorder.__exit__(None, None, None)
            self._recorder = None
        for hook in self._pass_hooks:
            hook.remove()
        self._pass_hooks = []
        self._stack = []

    def _entering(self, name: str) -> Any:
        def hook(*_: Any) -> None:
            self._stack.append(name)

        return hook

    def _leaving(self, *_: Any) -> None:
        if len(self._stack) > 1:
            self._stack.pop()

    def _measure(self, calls: list[Captured]) -> None:
        if not calls:
            raise RuntimeError(
                "the probe saw no attention in this forward pass. It sees scaled_dot_product_attention, softmax over "
                "(batch, heads, queries, keys) and this package's attention, outside torch.compile; a Hugging Face model can "
                "be watched with attn_implementation='sdpa' or 'eager'"
            )
        for layer, call in enumerate(calls):
            if self._wanted(layer, call.module):
                self.table.add(self._rows_of(layer, call))

    def _wanted(self, layer: int, module: str) -> bool:
        if self.layers is None:
            return True
        return bool(re.search(self.layers, module)) if isinstance(self.layers, str) else layer in self.layers

    def _rows_of(self, layer: int, call: Captured) -> list[dict[str, Any]]:
        columns = {name: value.tolist() for name, value in measure(call, self.measures, self.rows).items()}
        count = len(next(iter(columns.values()))) if columns else 0
        heads = range(count) if self.heads is None else [head for head in self.heads if head < count]
        length = call.k.shape[2] if call.k is not None else call.build().shape[3]
        key = {"step": self._step, "layer": layer, "module": call.module, "kind": call.kind, "length": length}
        return [{**key, "head": head, **{name: value[head] for name, value in columns.items()}} for head in heads]
