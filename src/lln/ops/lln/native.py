"""LLN attention on the compiled kernel: allocation here, arithmetic in C++."""

from typing import Any

import torch
from torch import Tensor

from lln.ops.backends import Backend
from lln.ops.lln.op import Operands, Results, State, attention
from lln.ops.native.call import available, boundaries, dense, empty_result, run, supports

PARAMETERS = ("alpha", "beta", "bias")


def forward(x: Operands) -> Results:
    out = empty_result(x.q, x.v.shape[-1])
    state = State.uninitialised(x.beta, x.v.shape[-1], torch.float32 if x.start is None else torch.float64)
    run("forward", **_fields(x), **state._asdict(), out=out)
    return Results(out, *state.with_sums_in(x.sums_dtype))


def backward(grads: dict[str, Tensor | None], results: Results, x: Operands, wanted: set[str]) -> dict[str, Tensor]:
    grad = grads["out"]
    found = {n: empty_result(t, t.shape[-1]) for n, t in (("q", x.q), ("k", x.k), ("v", x.v))}
    with_parameters = bool(wanted & set(PARAMETERS))
    if with_parameters:
        found |= {n: torch.empty_like(t) for n, t in zip(PARAMETERS, (x.alpha, x.beta, x.alpha), strict=True)}
    final = State(*(t.contiguous() for t in results.state.with_sums_in(torch.float32)))
    if x.start is not None:
        found |= {f"start_{n}": torch.empty_like(getattr(final, n)) for n in ("summed", "normaliser")}
    fields = {f"d{name}": t for name, t in found.items()}
    if grads["summed"] is not None or grads["normaliser"] is not None:
        fields |= {f"d{n}": _gradient(grads[n], getattr(final, n)) for n in ("summed", "normaliser")}
    grad = torch.zeros_like(results.out) if grad is None else grad
    run("backward", **_fields(x), **final._asdict(), grad=grad, parameter_grads=with_parameters, **fields)
    of_start = {n: found[n].to(x.sums_dtype) for n in ("start_summed", "start_normaliser") if n in found}
    return found | of_start


def _gradient(given: Tensor | None, of: Tensor) -> Tensor:
    return torch.zeros_like(of) if given is None else given.to(torch.float32).contiguous()


def _fields(x: Operands) -> dict[str, Any]:
    """The operands as the kernel takes them: it goes on from sums in double, and refuses other dtypes."""
    fields = x._asdict()
    for name in ("start_summed", "start_normaliser"):
        sums: Tensor | None = fields[name]
        fields[name] = sums.double() if sums is not None and sums.dtype == torch.float32 else sums
    for name in ("alpha", "beta", "bias", "start_maximum", "start_summed", "start_normaliser"):
        fields[name] = dense(fields[name])
    return fields | {"cu_seqlens": boundaries(x.cu_seqlens)}


def _refuses(x: Operands) -> str | None:
    return supports(x.q, x.k, x.v)


NATIVE = attention.backends.register(Backend("native", forward, backward, _refuses, available, expected_on="cpu"))
