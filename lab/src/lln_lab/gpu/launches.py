"""What every operation launches, for a shape: caught, not run."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from lln.ops.blocks.op import Operands as BlockOperands
from lln.ops.diag.op import Operands as DiagOperands
from lln.ops.gpu import attention, block_attention, diag_attention, near_far_attention, sample_matching
from lln.ops.lln.op import Operands, State
from lln.ops.moments import MatchOperands
from lln.ops.near_far import Operands as NearFarOperands
from lln_lab.gpu.compiling import Launch, caught

BLOCK = 128
NEIGHBOURS, FIRST_TOKENS = 0, 4  # of near-far attention
MATCHING = "matching on a sample"
# Where its kernels are compiled: its searches take minutes, and a dtype changes no more of them than what is read.
MATCHED = ((64, torch.bfloat16), (128, torch.bfloat16))
DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


@dataclass(frozen=True)
class Size:
    """Of the inputs. Several stretches: a number that is 1 would be compiled into the kernels."""

    dim: int
    dtype: torch.dtype
    batch: int = 4
    heads: int = 12
    length: int = 16_384


def launches(size: Size) -> dict[str, list[Launch]]:
    """By operation and direction, in the order in which they would run."""
    found = {}
    for name, run in _operations(size).items():
        with caught() as forward:
            results, backward = run()
        found[f"{name} forward"] = list(forward)
        if backward is not None:
            with caught() as back:
                backward(results)
            found[f"{name} backward"] = list(back)
    return found


def _operations(size: Size) -> dict[str, Any]:
    # Nothing runs, so no memory is needed: one element stands for all.
    shape = (size.batch, size.heads, size.length, size.dim)
    q, k, v = (torch.empty(shape, dtype=size.dtype, device="meta") for _ in range(3))
    scale = torch.empty(size.batch, size.heads, size.dim, device="meta")
    weight = torch.empty(size.batch, size.heads, 1, device="meta")

    def lln(causal: bool) -> Any:
        x = Operands(q, k, v, scale, scale, scale, is_causal=causal)
        return attention.forward(x), lambda r: attention.backward(
            {"out": torch.empty_like(r.out), "summed": None, "normaliser": None}, r, x, {"alpha"}
        )

    def blocks(causal: bool) -> Any:
        x = BlockOperands(q, k, v, None, None, BLOCK, size.dim**-0.5, causal)
        return block_attention.forward(x), lambda r: block_attention.backward(
            {"out": torch.empty_like(r.out)}, r, x, set()
        )

    def diag(causal: bool) -> Any:
        x = DiagOperands(
            q,
            k,
            v,
            None,
            None,
            scale,
            scale,
            scale,
            weight,
            None,
            None,
            BLOCK,
            size.dim**-0.5,
            causal,
            keep_branch=True,
        )
        return diag_attention.forward(x), lambda r: diag_attention.backward(
            {"out": torch.empty_like(r.out)}, r, x, {"alpha", "weight"}
        )

    def near_far(causal: bool) -> Any:
        weights = torch.empty(size.batch, size.heads, 4, device="meta")
        x = NearFarOperands(
            q, k, v, scale, scale, scale, weights, None, None, BLOCK, NEIGHBOURS, FIRST_TOKENS, size.dim**-0.5, causal
        )  # fmt: skip
        return near_far_attention.forward(x), lambda r: near_far_attention.backward(
            {"out": torch.empty_like(r.out)}, r, x, {"alpha"}
        )

    def step() -> Any:
        one: list[Any] = [t[:, :, :1] for t in (q, k, v)]
        state = [scale, scale.new_empty(*scale.shape, size.dim, dtype=torch.float64), scale.double()]
        x = Operands(one[0], one[1], one[2], scale, scale, scale, is_causal=True).starting_from(State(*state))
        return attention.forward(x), None

    def matching() -> Any:
        x = MatchOperands(q, k, None, None, "sample", "entropy", "head", size.dim**-0.5, True)
        return sample_matching.forward(x), None

    found: dict[str, Any] = {}
    for causal, words in ((False, "bidirectional"), (True, "causal")):
        found |= {
            f"{name}, {words}": partial(run, causal)
            for name, run in (("LLN", lln), ("blocks", blocks), ("LLN+Diag", diag), ("near-far", near_far))
        }
    return found | {"a step of decoding": step} | ({MATCHING: matching} if (size.dim, size.dtype) in MATCHED else {})
