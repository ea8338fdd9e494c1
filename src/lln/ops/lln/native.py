"""LLN attention on the compiled kernel: checks and allocation here, arithmetic in C++."""

import torch
from torch import Tensor

from lln.ops.backends import Backend
from lln.ops.lln.op import Operands, Results, State, attention
from lln.ops.native.arguments import boundaries, dense, empty_result, run
from lln.ops.native.interface import AttentionCall
from lln.ops.native.library import available, supports


def forward(x: Operands) -> Results:
    return forward_into(empty_result(x.q, x.v.shape[-1]), x)


def forward_into(out: Tensor, x: Operands) -> Results:
    """`forward`, its output written to `out`."""
    state = State.uninitialised(x.beta, x.v.shape[-1], torch.float32 if x.start is None else torch.float64)
    run("forward", _call(x, state, out=out))
    return Results(out, *state.with_sums_in(x.sums_dtype))


def backward(grads: dict[str, Tensor | None], results: Results, x: Operands, wanted: set[str]) -> dict[str, Tensor]:
    return weighted_backward(grads, results, x, wanted, None)


def weighted_backward(
    grads: dict[str, Tensor | None], results: Results, x: Operands, wanted: set[str], weight: Tensor | None
) -> dict[str, Tensor]:
    """`backward`, from w_i dout_i where a weight (B, Hq, N or 1) in float32 is given."""
    grad = grads["out"]
    found = {n: empty_result(t, t.shape[-1]) for n, t in (("q", x.q), ("k", x.k), ("v", x.v))}
    if wanted & {"alpha", "beta", "bias"}:
        found |= {n: torch.empty_like(t) for n, t in (("alpha", x.alpha), ("beta", x.beta), ("bias", x.alpha))}
    final = State(*(t.contiguous() for t in results.state.with_sums_in(torch.float32)))
    if x.start is not None:
        found |= {
            "start_summed": torch.empty_like(final.summed),
            "start_normaliser": torch.empty_like(final.normaliser),
        }
    fields = {f"d{name}": t for name, t in found.items()}
    if grads["summed"] is not None or grads["normaliser"] is not None:
        fields |= {f"d{n}": _gradient(grads[n], getattr(final, n)) for n in ("summed", "normaliser")}
    grad = torch.zeros_like(results.out) if grad is None else grad
    call = _call(x, final, grad=grad, weight=weight, **fields)
    call.parameter_grads = "alpha" in found
    run("backward", call)
    of_start = {n: found[n].to(x.sums_dtype) for n in ("start_summed", "start_normaliser") if n in found}
    return found | of_start


def _gradient(given: Tensor | None, of: Tensor) -> Tensor:
    return torch.zeros_like(of) if given is None else given.to(torch.float32).contiguous()


def _call(x: Operands, state: State, **further: Tensor | None) -> AttentionCall:
    begin = {"start_maximum": dense(x.start_maximum)}
    for name in (
        "start_summed",
        "start_normaliser",
    ):  # the kernel goes on from sums in double, and refuses other dtypes
        sums: Tensor | None = getattr(x, name)
        begin[name] = dense(sums.double() if sums is not None and sums.dtype == torch.float32 else sums)
    call = AttentionCall(is_causal=x.is_causal)
    call.pass_tensors(
        q=x.q, k=x.k, v=x.v, alpha=dense(x.alpha), beta=dense(x.beta), bias=dense(x.bias),
        key_mask=x.key_mask, cu_seqlens=boundaries(x.cu_seqlens), **begin,
        maximum=state.maximum, summed=state.summed, normaliser=state.normaliser, **further,
    )  # fmt: skip
    return call


def _refuses(x: Operands) -> str | None:
    return supports(x.q, x.k, x.v)


NATIVE = attention.backends.register(Backend("native", forward, backward, _refuses, available, expected_on="cpu"))
