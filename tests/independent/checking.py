"""One drawn call against the oracle, by the project's rule: the error is at most twice (three times for gradients) what
the same formula makes in plain PyTorch, plus a few units in the last place.

Plain PyTorch computes in the dtype that the library promises to compute in, float32 at least; so half precision is allowed
the rounding of its results and no more. Last places are those of the sum of the absolute values of a result's terms.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tests.independent import oracle, plain
from tests.independent.cases import FUNCTIONS, KEY_MASK, Call, Case, build, draw

OUTPUT_FACTOR, GRADIENT_FACTOR, UNITS_IN_LAST_PLACE = 2.0, 3.0, 4.0
NAMES_IN_CALLS = {"bias": "feature_bias"}


def check(seed: int) -> None:
    case = draw(seed)
    try:
        _check(case, build(case))
    except Exception as error:
        error.add_note(f"drawn call {case}")
        raise


def _check(case: Case, call: Call) -> None:
    truth = oracle.attend(call.problem, call.upstream64)
    plainly = [_plain(call, case, way) for way in plain.WAYS]
    leaves = {name: x.detach().requires_grad_(name in case.wants) for name, x in call.arguments.items()}
    versions = {name: x._version for name, x in leaves.items()}
    out, final = run(case, call, leaves)

    assert out.shape == (*call.problem.q.shape[:3], case.value_dim) and out.dtype == case.dtype
    results = {"output": out.detach()}
    wanted = [name for name, x in leaves.items() if x.requires_grad]
    assert out.requires_grad == bool(wanted), "the output wants a gradient exactly where an input does"
    if wanted:
        gradients = torch.autograd.grad(out, [leaves[name] for name in wanted], call.upstream)
        results |= dict(zip(wanted, gradients, strict=True))
    assert versions == {name: x._version for name, x in leaves.items()}, "an input was written to"

    for name, actual in results.items():
        true, size = truth.values[name], truth.sizes[name]
        if name != "output":
            assert actual.dtype == leaves[name].dtype and actual.shape == leaves[name].shape
        factor = OUTPUT_FACTOR if name == "output" else GRADIENT_FACTOR
        what = name if name == "output" else f"gradient of {name}"
        _assert_as_good(case, call, actual, [x[name] for x in plainly], true, size, factor, what)
    _rows_and_keys_that_do_not_count(call, results)
    if final is not None:
        _check_state(case, call, final)


def run(case: Case, call: Call, leaves: dict[str, Tensor]) -> tuple[Tensor, Any]:
    """The library's output, whole or in pieces, and the state after it if there are pieces."""
    function, options = FUNCTIONS[case.function], dict(call.options)
    taken = {"lln": ("alpha", "beta", "bias"), "blocks": (), "diag": ("alpha", "beta", "bias", "mix")}[case.function]
    for name in taken:
        if name in leaves:
            x = leaves[name]
            plain_number = x.dim() == 0 and not x.requires_grad and case.seed % 2 == 0
            options[NAMES_IN_CALLS.get(name, name)] = x.item() if plain_number and name != "bias" else x
    q, k, v = leaves["q"], leaves["k"], leaves["v"]
    if case.pieces is None:
        return function(q, k, v, **options), None
    state, outputs, start, mask = None, [], 0, options.pop(KEY_MASK, None)
    for length in case.pieces:
        at = slice(start, start + length)
        if mask is not None:
            options[KEY_MASK] = mask[:, at]
        out, state = function(q[:, :, at], k[:, :, at], v[:, :, at], state=state, return_state=True, **options)
        outputs.append(out)
        start += length
    return torch.cat(outputs, dim=2), state


def _plain(call: Call, case: Case, way: str) -> dict[str, Tensor]:
    """Output and gradients of plain PyTorch, in the shapes of the arguments."""
    x, dtype = call.problem, torch.promote_types(case.dtype, torch.float32)
    arrays = {"q": x.q, "k": x.k, "v": x.v, "alpha": x.alpha, "beta": x.beta, "bias": x.bias, "mix": x.mix}
    leaves = {name: torch.from_numpy(np.array(array)).to(dtype).requires_grad_() for name, array in arrays.items()}
    out = plain.attend(x, leaves, way)
    results = {"output": out.detach()}
    if case.wants and out.requires_grad:
        gradients = torch.autograd.grad(
            out, list(leaves.values()), call.upstream.to(dtype), allow_unused=True, materialize_grads=True
        )
        results |= dict(zip(leaves, gradients, strict=True))
    return results


def _error(x: np.ndarray, exact: np.ndarray, shape: torch.Size) -> float:
    """The largest error of x, summed to `shape`; where errors cancel in a sum by luck, what they would add up to without."""
    errors = x - exact
    summed, unlucky = np.abs(_as_given(errors, shape)), np.sqrt(_as_given(errors**2, shape))
    return float(np.maximum(summed, unlucky).max())


def _as_given(x: np.ndarray, shape: torch.Size) -> np.ndarray:
    """Summed over what an argument was broadcast to."""
    if x.shape == tuple(shape):
        return x
    if x.ndim == 3:
        x = x[:, :, None]  # alpha, beta and bias are given as (S, H, 1, D)
    elif x.ndim == 1 and len(shape) == 0:
        return x.sum()
    lead = x.ndim - len(shape)
    axes = (*range(lead), *(lead + i for i, n in enumerate(shape) if n == 1))
    return x.sum(axis=axes, keepdims=True).reshape(tuple(shape))


def _assert_as_good(
    case: Case, call: Call, actual: Tensor, plainly: list[Tensor], exact: Any, size: Any, factor: float, what: str
) -> None:  # fmt: skip
    assert torch.isfinite(actual).all(), f"{what} is not finite"
    error = float(np.abs(_array(actual) - _as_given(exact, actual.shape)).max())
    plain_error = max(_error(_array(x), exact, actual.shape) for x in plainly)
    last_place, largest = torch.finfo(case.dtype).eps, float(np.max(_as_given(size, actual.shape)))
    allowed = factor * plain_error + (UNITS_IN_LAST_PLACE * last_place + _exponent_rounding(call.problem)) * largest
    assert error <= allowed, (
        f"{what}: error {error:.3g}, allowed {allowed:.3g} (plain {plain_error:.3g}, terms {largest:.3g})"
    )


def _exponent_rounding(x: oracle.Problem) -> float:
    """How well the oracle knows a weight: its exponents are float64, too, and one of 300 is known to 300 eps."""
    largest = [float(np.abs(a).max()) for a in (x.alpha, x.q, x.beta, x.k, x.bias)]
    exponent = largest[0] * largest[1] + largest[2] * largest[3] + largest[4] if x.lln else 0.0
    score = abs(x.scale) * largest[1] * largest[3] * x.q.shape[3] if x.blocks else 0.0
    return np.finfo(np.float64).eps * max(exponent, score)


def _rows_and_keys_that_do_not_count(call: Call, results: dict[str, Tensor]) -> None:
    """Zeros, exactly: a row without keys, and the gradients of keys that are masked."""
    x = call.problem
    if x.counts is None:
        return
    seen = np.logical_or.accumulate(x.counts, axis=1) if x.causal else x.counts.any(axis=1)[:, None]
    for sample, rows in enumerate(np.broadcast_to(seen, (x.q.shape[0], x.q.shape[2]))):
        assert (results["output"][sample][:, torch.from_numpy(~rows)] == 0).all(), "a row without keys is not zero"
    for name in {"k", "v"} & results.keys():
        masked = torch.from_numpy(~x.counts)[:, None, :, None]
        assert (results[name].masked_select(masked) == 0).all(), f"a masked {name} has a gradient"


def _check_state(case: Case, call: Call, final: Any) -> None:
    x, dtype = call.problem, torch.promote_types(case.dtype, torch.float32)
    true = oracle.state(x)
    inputs = {name: torch.from_numpy(getattr(x, name)).to(dtype) for name in ("k", "v", "beta")}
    plainly = plain.state(x, inputs)
    sizes = {
        "maximum": np.abs(oracle.finite(true["maximum"])),
        "normaliser": true["normaliser"],
        "summed": oracle.state(replace(x, v=np.abs(x.v)))["summed"],
    }
    for name, size in sizes.items():
        actual, expected = getattr(final, name), true[name]
        assert actual.dtype == (dtype if name == "maximum" else torch.float64) and actual.shape == expected.shape
        empty = np.isneginf(expected)
        assert np.array_equal(_array(actual) == -np.inf, empty), "the maximum is -inf exactly where no key has counted"
        actual, expected, measure = (oracle.finite(a) for a in (_array(actual), expected, _array(plainly[name])))
        whole = replace(case, dtype=dtype)  # states are never in half precision
        tensors = torch.from_numpy(actual), [torch.from_numpy(measure)]
        _assert_as_good(whole, call, *tensors, expected, size, OUTPUT_FACTOR, f"state's {name}")


def _array(x: Tensor) -> np.ndarray:
    return x.detach().double().contiguous().numpy()
