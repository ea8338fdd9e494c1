"""LLN+Diag on the compiled kernel, both branches in one call: allocation here, arithmetic in C++.

    forward     LLN and the blocks write each row once, mixed: w_i LLN_i + (1 - w_i) Diag_i
    backward    LLN from w_i dout_i, scaled as it is read; then the blocks from (1 - w_i) dout_i, which add to LLN's gradients
    step        one more token: LLN from its sums, one row of the open block, and the state after it

No scaled gradient, no block output and no sum of the two is ever held in memory.
"""

from typing import Any

import torch
from torch import Tensor

from lln.ops.backends import Backend
from lln.ops.diag.op import Operands, Results
from lln.ops.diag.step import StepOperands, StepResults
from lln.ops.lln.op import State
from lln.ops.native.call import available, boundaries, dense, empty_result, run, supports

PARAMETERS = ("alpha", "beta", "bias")
OF_START = ("start_maximum", "start_summed", "start_normaliser")
OF_BLOCK = ("keys", "values", "counts", "filled", "started")
AFTER = tuple(f"{name}_after" for name in OF_BLOCK)


def forward(x: Operands) -> Results:
    out = empty_result(x.q, x.v.shape[-1])
    lln_out = empty_result(x.q, x.v.shape[-1]) if x.keep_branch else None
    state = State.uninitialised(x.beta, x.v.shape[-1], torch.float32)
    run("diag_forward", **_fields(x), **state._asdict(), out=out, lln_out=lln_out)
    return Results(out, x.q.new_empty(0) if lln_out is None else lln_out, *state)


def backward(grads: dict[str, Tensor | None], results: Results, x: Operands, wanted: set[str]) -> dict[str, Tensor]:
    rows = {"q": x.q, "k": x.k, "v": x.v, "lln_q": x.lln_q, "lln_k": x.lln_k}
    found = {n: empty_result(t, t.shape[-1]) for n, t in rows.items() if t is not None}
    with_parameters = bool(wanted & set(PARAMETERS))
    if with_parameters:
        found |= {n: torch.empty_like(t) for n, t in zip(PARAMETERS, (x.alpha, x.beta, x.alpha), strict=True)}
    if "weight" in wanted:
        found["weight"] = torch.empty(x.q.shape[:3], dtype=torch.float32)
    state = {n: t.contiguous() for n, t in results.state._asdict().items()}
    written = {f"d{name}": t for name, t in found.items()}
    branch = results.lln_out if "weight" in wanted else None
    run(
        "diag_backward", **_fields(x), **state, grad=grads["out"], lln_out=branch, parameter_grads=with_parameters, **written
    )  # fmt: skip
    if "weight" in wanted and x.weight.shape != found["weight"].shape:
        found["weight"] = found["weight"].sum(dim=-1, keepdim=True)
    return found


def step(x: StepOperands) -> StepResults:
    out = empty_result(x.q, x.v.shape[-1])
    state = State.uninitialised(x.beta, x.v.shape[-1], torch.float64)
    fields = x._asdict()
    for name in (*PARAMETERS, *OF_START, *OF_BLOCK):
        fields[name] = dense(fields[name])
    block = [torch.empty_like(fields[name]) for name in OF_BLOCK]
    sums = {name: fields[name].double() for name in OF_START[1:]}  # the kernel goes on from sums in double
    run("diag_step", **fields | sums | dict(zip(AFTER, block, strict=True)), **state._asdict(), out=out)
    return StepResults(out, *state.with_sums_in(x.start_summed.dtype), *block)


def _fields(x: Operands) -> dict[str, Any]:
    """The operands as the kernel takes them."""
    fields = x._asdict()
    del fields["keep_branch"]
    for name in PARAMETERS:
        fields[name] = dense(fields[name])
    block_size = min(x.block_size, x.k.shape[2])  # any number of Python's, made to fit one of C's
    return fields | {"cu_seqlens": boundaries(x.cu_seqlens), "block_size": block_size}


def _refuses(x: Operands | StepOperands) -> str | None:
    return supports(x.q, x.k, x.v) or (None if x.lln_q is None or x.lln_k is None else supports(x.lln_q, x.lln_k))


NATIVE = Backend("native", forward, backward, _refuses, available, expected_on="cpu")
NATIVE_STEP = Backend("native", step, None, _refuses, available, expected_on="cpu")
