"""An operation: one torch operator over a record of operands, computed by whichever backend takes them.

The operands are a NamedTuple, and so are the results. Their fields, in order, are the operator's arguments and its returns;
nothing spells them out a second time. For a record X with results R this file registers

    lln::{name}(X..., str backend) -> R
    lln::{name}_backward(gradients of R, R, X..., bool[] wanted, str backend) -> gradients of the differentiable operands

with what `torch.compile`, `torch.export`, autograd and `torch.vmap` ask of an operator. `backend` is a name or "auto" and is
resolved when the operator runs, so a graph that was exported on one machine runs on another. Shapes and values are checked
inside the operator as well, for any caller, because kernels read memory by address.

Operators are registered with `torch.library.Library`. `torch.library.custom_op` would import the compiler at the first call.
"""

from collections.abc import Callable
from types import UnionType
from typing import Any, Generic, TypeVar, get_args, get_type_hints

import torch
from torch import Tensor
from torch._C._functorch import TransformType, get_interpreter_stack
from torch.autograd import forward_ad

from lln.ops import graphs, stretches
from lln.ops.backends import AUTO, Backend, Backends

NO_DOUBLE_BACKWARD = (
    "LLN attention has no double backward: its gradient is computed by a kernel that is not itself differentiable. "
    "Call backward without create_graph=True, or use backend='oracle', which is differentiable to any order."
)
NO_VMAP_OVER_PACKED = "vmap over packed sequences (cu_seqlens) is not supported: pack the vmapped samples instead"

X = TypeVar("X", bound=tuple)
R = TypeVar("R", bound=tuple)

LIBRARY = torch.library.Library("lln", "DEF")
KINDS = {Tensor: "Tensor", bool: "bool", int: "int", float: "float", str: "str"}


class Operation(Generic[X, R]):
    """`operation(x, backend)` computes the results of `x`; its backends are registered by their own files.

    differentiable: the operands that gradients are given for.
    flowing: the results that gradients may come back through; the others are constants.
    empty: the results of x, uninitialised.
    check: raises if shapes, dtypes or devices are not what the operation takes; reads no value.
    check_values: raises if values would lead out of bounds; called on CPU only, where reading them is free.
    """

    def __init__(
        self,
        name: str,
        operands: type[X],
        results: type[R],
        *,
        empty: Callable[[X], R],
        check: Callable[[X], None],
        check_values: Callable[[X], None],
        differentiable: tuple[str, ...] = (),
        flowing: tuple[str, ...] = (),
    ) -> None:
        self.name, self.operands, self.results = name, operands, results
        self.differentiable, self.flowing = differentiable, flowing
        self.empty, self.check, self.check_values = empty, check, check_values
        self.backends: Backends = Backends(name)
        self._fields: tuple[str, ...] = operands._fields  # type: ignore[attr-defined]
        self._outputs: tuple[str, ...] = results._fields  # type: ignore[attr-defined]
        self._forward = self._define_forward()
        self._backward = self._define_backward() if differentiable else None

    def __call__(self, x: X, backend: str = AUTO) -> R:
        if graphs.forms is not None:
            self.check(x)
            seen_through: R = graphs.form_of(self.name)(x)
            return seen_through
        if stretches.holders is not None:
            found: R = stretches.form_of(self.name)(x, backend)
            return found
        if torch.compiler.is_compiling():
            return self._make(self._forward(*x, backend))
        if _torch_differentiates(x):
            return self._run(self.backends.transparent(backend, x), x)
        chosen = self.backends.pick(backend, x)
        return self._run(chosen, x) if chosen.by_autograd else self._make(self._forward(*x, chosen.name))

    def _make(self, flat: Any) -> R:
        return self.results(*flat) if len(self._outputs) > 1 else self.results(flat)

    def _run(self, backend: Backend, x: X) -> R:
        tensor: Tensor = x[0]
        self.check(x)
        if tensor.device.type == "cpu":
            self.check_values(x)
        with torch.autocast(tensor.device.type, enabled=False):
            found: R = backend.forward(x)
        return found

    def _define_forward(self) -> Callable[..., Any]:
        hints = get_type_hints(self.operands)
        arguments = ", ".join(f"{_kind(hints[f])} {f}" for f in self._fields)
        LIBRARY.define(f"{self.name}({arguments}, str backend) -> ({', '.join(['Tensor'] * len(self._outputs))})")

        def body(*flat: Any) -> Any:
            *given, backend = flat
            x = self.operands(*given)
            return _unwrapped(self._run(self.backends.pick(backend, x), x))

        def fake(*flat: Any) -> Any:
            return _unwrapped(self.empty(self.operands(*flat[:-1])))

        name = f"lln::{self.name}"
        LIBRARY.impl(self.name, body, "CompositeExplicitAutograd")
        torch.library.register_fake(name, fake, lib=LIBRARY)
        if self.differentiable:
            torch.library.register_autograd(name, self._gradient, setup_context=self._save, lib=LIBRARY)
        run: Callable[..., Any] = getattr(torch.ops.lln, self.name).default
        torch.library.register_vmap(name, batching_rule(run), lib=LIBRARY)
        return run

    def _define_backward(self) -> Callable[..., Any]:
        hints = get_type_hints(self.operands)
        arguments = [f"Tensor? grad_{r}" for r in self.flowing] + [f"Tensor result_{r}" for r in self._outputs]
        arguments += [f"{_kind(hints[f])} {f}" for f in self._fields] + ["bool[] wanted", "str backend"]
        returns = ", ".join(["Tensor"] * len(self.differentiable))
        own = f"{self.name}_backward"
        LIBRARY.define(f"{own}({', '.join(arguments)}) -> ({returns})")

        def read(flat: tuple[Any, ...]) -> tuple[dict[str, Tensor | None], R, X, set[str], str]:
            *most, wanted, backend = flat
            grads, rest = most[: len(self.flowing)], most[len(self.flowing) :]
            results, given = rest[: len(self._outputs)], rest[len(self._outputs) :]
            names = {name for name, wants in zip(self.differentiable, wanted, strict=True) if wants}
            by_name = dict(zip(self.flowing, grads, strict=True))
            return by_name, self.results(*results), self.operands(*given), names, backend

        def body(*flat: Any) -> Any:
            grads, results, x, wanted, backend = read(flat)
            self.check(x)
            chosen = self.backends.pick(backend, x)
            assert chosen.backward is not None
            if x[0].device.type == "cpu":
                self.check_values(x)
            with torch.autocast(x[0].device.type, enabled=False):
                found = chosen.backward(grads, results, x, wanted)
            return _unwrapped(tuple(found[f] if f in wanted else _nothing(x[0]) for f in self.differentiable))

        def fake(*flat: Any) -> Any:
            _, _, x, wanted, _ = read(flat)
            return _unwrapped(tuple(
                empty_like_rows(getattr(x, f)) if f in wanted else _nothing(x[0]) for f in self.differentiable
            ))  # fmt: skip

        LIBRARY.impl(own, body, "CompositeExplicitAutograd")
        torch.library.register_fake(f"lln::{own}", fake, lib=LIBRARY)
        torch.library.register_autograd(f"lln::{own}", _refuse_double_backward, lib=LIBRARY)
        run: Callable[..., Any] = getattr(torch.ops.lln, own).default
        torch.library.register_vmap(f"lln::{own}", batching_rule(run), lib=LIBRARY)
        return run

    def _save(self, ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        *operands, ctx.backend = inputs
        results = output if isinstance(output, tuple) else (output,)
        tensors = [i for i, value in enumerate(operands) if isinstance(value, Tensor)]
        ctx.places, ctx.constants = tensors, [None if isinstance(x, Tensor) else x for x in operands]
        ctx.save_for_backward(*(operands[i] for i in tensors), *results)
        ctx.set_materialize_grads(False)
        constant = [r for name, r in zip(self._outputs, results, strict=True) if name not in self.flowing]
        ctx.mark_non_differentiable(*(r for r in constant if r.is_floating_point()))

    def _gradient(self, ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        assert self._backward is not None
        saved, operands = ctx.saved_tensors, list(ctx.constants)
        for place, tensor in zip(ctx.places, saved, strict=False):
            operands[place] = tensor
        results = saved[len(ctx.places) :]
        needs = dict(zip(self._fields, ctx.needs_input_grad, strict=False))
        wanted = [bool(needs[f]) for f in self.differentiable]
        flowing = [g for name, g in zip(self._outputs, grads, strict=True) if name in self.flowing]
        if not any(wanted) or all(g is None for g in flowing):
            return (None,) * (len(self._fields) + 1)
        found = self._backward(*flowing, *results, *operands, wanted, ctx.backend)
        found = found if isinstance(found, tuple) else (found,)
        by_name = {f: g for f, g, wants in zip(self.differentiable, found, wanted, strict=True) if wants}
        return (*(by_name.get(f) for f in self._fields), None)


def under_autocast(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """As scaled_dot_product_attention does: under autocast q, k and v come in its dtype, float64 excepted.

    Inside of an operation states and normalisers are float32 at least, and autocast is off.
    """
    if not isinstance(q, Tensor) or not torch.amp.is_autocast_available(q.device.type):
        return q, k, v
    if not torch.is_autocast_enabled(q.device.type):
        return q, k, v
    dtype = torch.get_autocast_dtype(q.device.type)
    return tuple(x if x.dtype == torch.float64 else x.to(dtype) for x in (q, k, v))  # type: ignore[return-value]


def empty_like_rows(x: Tensor) -> Tensor:
    """Uninitialised, of x's shape; (B, H, N, D) laid out as `empty_rows` does."""
    return empty_rows(x, x.shape[-1]) if x.dim() == 4 else torch.empty_like(x, memory_format=torch.contiguous_format)


def empty_rows(like: Tensor, features: int) -> Tensor:
    """(B, H, N, features), laid out as (B, H, N, D) `like` is, so that merging the heads afterwards needs no copy."""
    batch, heads, length, _ = like.shape
    if like.stride(1) < like.stride(2):
        return like.new_empty(batch, length, heads, features).transpose(1, 2)
    return like.new_empty(batch, heads, length, features)


def _kind(hint: Any) -> str:
    if isinstance(hint, UnionType):
        (inner,) = (a for a in get_args(hint) if a is not type(None))
        return f"{KINDS[inner]}?"
    return KINDS[hint]


def _unwrapped(results: tuple[Tensor, ...]) -> Any:
    """An operator of one result returns the tensor itself."""
    return tuple(results) if len(results) > 1 else results[0]


def _nothing(like: Tensor) -> Tensor:
    """Placeholder for a gradient that was not requested."""
    return like.new_empty(0)


def _torch_differentiates(x: tuple[Any, ...]) -> bool:
    """Whether torch.func or forward mode is at work, whose derivatives do not pass through an operator's own gradient."""
    if any(level.key() != TransformType.Vmap for level in get_interpreter_stack() or ()):
        return True
    if forward_ad._current_level < 0:
        return False
    return any(isinstance(t, Tensor) and forward_ad.unpack_dual(t).tangent is not None for t in x)


def _refuse_double_backward(ctx: Any, *grads: Tensor) -> None:
    raise RuntimeError(NO_DOUBLE_BACKWARD)


def batching_rule(run: Callable[..., Any]) -> Callable[..., Any]:
    """vmap folds its dimension into the first one, that of samples, which are independent anyway."""

    def fold(argument: Any, dim: int | None, size: int) -> Any:
        if not isinstance(argument, Tensor):
            return argument
        moved = argument.movedim(dim, 0) if dim is not None else argument.expand(size, *argument.shape)
        return moved.flatten(0, 1)

    def rule(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> Any:
        if any(isinstance(a, Tensor) and a.dtype == torch.int64 for a in args):
            raise RuntimeError(NO_VMAP_OVER_PACKED)
        size = info.batch_size
        results = run(*(fold(a, dim, size) for a, dim in zip(args, in_dims, strict=True)))
        if isinstance(results, Tensor):
            return results.unflatten(0, (size, -1)), 0
        unfolded = tuple(r.new_empty(size, 0) if r.shape == (0,) else r.unflatten(0, (size, -1)) for r in results)
        return unfolded, (0,) * len(unfolded)

    return rule
