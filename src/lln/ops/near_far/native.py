"""Near exact, far by moments, on the compiled kernel."""

from typing import Any

from torch import Tensor

from lln.ops.backends import Backend
from lln.ops.native.call import available, boundaries, dense, empty_result, run, supports
from lln.ops.near_far.moments import Moments
from lln.ops.near_far.op import WEIGHTS, Operands, Results, near_far
from lln.ops.near_far.step import StepOperands, near_far_step

PARAMETERS = ("alpha", "beta", "bias", "weights")


def forward(x: Operands) -> Results:
    out = empty_result(x.q, x.v.shape[-1])
    run("near_far_forward", **_fields(x), out=out)
    return Results(out)


def backward(grads: dict[str, Tensor | None], results: Results, x: Operands, wanted: set[str]) -> dict[str, Tensor]:
    """Everything is computed again; the output is not needed."""
    found = {n: empty_result(t, t.shape[-1]) for n, t in (("q", x.q), ("k", x.k), ("v", x.v))}
    with_parameters = bool(wanted & set(PARAMETERS))
    if with_parameters:
        of_sequences = x.weights.new_empty(x.alpha.shape[0], x.q.shape[1], len(WEIGHTS))
        like = (x.alpha, x.beta, x.alpha, of_sequences)
        found |= {n: t.new_empty(t.shape) for n, t in zip(PARAMETERS, like, strict=True)}
    written = {f"d{name}": t for name, t in found.items()}
    run("near_far_backward", **_fields(x), grad=grads["out"], parameter_grads=with_parameters, **written)
    if with_parameters and x.cu_seqlens is not None:
        found["weights"] = found["weights"].sum(dim=0, keepdim=True)
    return found


def step(x: StepOperands) -> Results:
    out = empty_result(x.q, x.v.shape[-1])
    fields = x._asdict()
    for name in (*PARAMETERS, *Moments._fields):
        fields[name] = dense(fields[name])
    fields["total"] = x.total.reshape(-1)
    run("near_far_step", **fields, out=out)
    return Results(out)


def _fields(x: Operands) -> dict[str, Any]:
    """The operands as the kernel takes them."""
    fields = x._asdict()
    for name in PARAMETERS:
        fields[name] = dense(fields[name])
    longest = x.k.shape[2]
    for name in ("block_size", "neighbours", "first_tokens"):  # any number of Python's, made to fit one of C's
        fields[name] = min(fields[name], longest)
    return fields | {"cu_seqlens": boundaries(x.cu_seqlens)}


def _refuses(x: Operands | StepOperands) -> str | None:
    return supports(x.q, x.k, x.v)


NATIVE = near_far.backends.register(Backend("native", forward, backward, _refuses, available, expected_on="cpu"))
near_far_step.backends.register(Backend("native", step, None, _refuses, available, expected_on="cpu"))
