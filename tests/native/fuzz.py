"""Calls of the C interface with something wrong in them: too little memory, other sizes, strides, dtypes, boundaries, nulls.

A call that fits its memory is drawn, then damaged in one place or in several. Every tensor lies in an allocation of its very
size, so that under AddressSanitizer a single byte too far ends the process. What must hold:

    a damage that no call could survive is refused, in words
    a refused call has written nothing
    no call, refused or not, writes to what it only reads
"""

import ctypes
import random
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from lln.ops.native.interface import (
    CALLS,
    AttentionCall,
    BlockCall,
    Call,
    DiagCall,
    DiagStepCall,
    MatchCall,
    MomentsCall,
    NearFarCall,
    NearFarStepCall,
    View,
)
from lln.ops.native.library import library

FLOAT32, FLOAT16, BFLOAT16, FLOAT64, INT64, BOOL = range(1, 7)
BYTES = {FLOAT32: 4, FLOAT16: 2, BFLOAT16: 2, FLOAT64: 8, INT64: 8, BOOL: 1}
INPUT_DTYPES = (FLOAT32, FLOAT16, BFLOAT16)
FAR = (2**31 - 1, 2**31, 2**40, 2**62, 2**63 - 1)

_libc = ctypes.CDLL(None)
_libc.malloc.restype, _libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
_libc.free.restype, _libc.free.argtypes = None, [ctypes.c_void_p]


@dataclass
class Memory:
    """Allocations of exactly the size asked for, and what was in them."""

    contents: dict[int, bytes] = field(default_factory=dict)

    def allocate(self, contents: bytes) -> int:
        address = _libc.malloc(len(contents))
        ctypes.memmove(address, contents, len(contents))
        self.contents[address] = contents
        return address

    def changed(self) -> set[int]:
        return {at for at, before in self.contents.items() if ctypes.string_at(at, len(before)) != before}

    def restore(self, addresses: set[int]) -> None:
        for at in addresses:
            ctypes.memmove(at, self.contents[at], len(self.contents[at]))

    def free(self) -> None:
        for at in self.contents:
            _libc.free(at)
        self.contents.clear()


@dataclass
class Drawn:
    """A call that fits its memory."""

    function: str
    call: Call
    rows: int  # what its boundaries must end with
    views: list[str] = field(default_factory=list)
    written: list[str] = field(default_factory=list)


class Drawing:
    """Draws one call and the memory of its tensors."""

    def __init__(self, rng: random.Random, memory: Memory) -> None:
        self.rng, self.memory = rng, memory
        self.batch, self.key_heads, self.groups = (rng.randint(1, 3) for _ in range(3))
        self.rows = rng.choice((1, 2, 5, 17, 49, 70))
        self.dim, self.value_dim = (rng.choice((1, 3, 8, 16, 33)) for _ in range(2))
        self.dtype = rng.choice(INPUT_DTYPES)
        self.packed = rng.random() < 0.3
        if self.packed:
            self.batch = 1
        self.edges = [0, *sorted(rng.randint(0, self.rows) for _ in range(rng.randint(0, 3))), self.rows]
        self.sequences = len(self.edges) - 1 if self.packed else self.batch

    def make(self) -> Drawn:
        function = self.rng.choice(list(CALLS))
        kernel = library()
        options = {"isa": self.rng.choice(list(kernel.usable.values())), "threads": self.rng.choice((1, 1, 2, 3))}
        drawn = Drawn(function, CALLS[function](**options), self.rows)
        kind = {
            AttentionCall: self._attention,
            MomentsCall: self._moments,
            MatchCall: self._match,
            BlockCall: self._block,
            DiagCall: self._diag,
            DiagStepCall: self._step,
            NearFarCall: self._near_far,
            NearFarStepCall: self._near_far_step,
        }
        kind[CALLS[function]](drawn)
        return drawn

    def _attention(self, drawn: Drawn) -> None:
        backward = drawn.function == "backward"
        drawn.call.is_causal = causal = self.rng.random() < 0.5
        queries = self._qkv(drawn, same_rows=causal or self.packed)
        heads, parameters = self.key_heads * self.groups, self.rng.random() < 0.5
        of_queries = (self.sequences, heads, self.dim)
        state = {
            "maximum": (self.sequences, self.key_heads, self.dim),
            "summed": (self.sequences, self.key_heads, self.dim, self.value_dim),
            "normaliser": (self.sequences, self.key_heads, self.dim),
        }
        self.dense(drawn, "alpha", FLOAT32, of_queries)
        self.dense(drawn, "beta", FLOAT32, state["maximum"])
        if self.rng.random() < 0.5:
            self.dense(drawn, "bias", FLOAT32, of_queries)
        starts = self.rng.random() < 0.5
        for name, shape in state.items():
            if starts:
                self.dense(drawn, f"start_{name}", FLOAT32 if name == "maximum" else FLOAT64, shape)
            sums = FLOAT64 if starts and not backward and name != "maximum" else FLOAT32
            self.dense(drawn, name, sums, shape, written=not backward)
        if not backward:
            self.result(drawn, "out", (self.batch, heads, queries, self.value_dim))
            return
        self._gradients(drawn, queries)
        sums = {name: shape for name, shape in state.items() if name != "maximum"}
        for prefix, wanted in (("d", self.rng.random() < 0.5), ("dstart_", starts and self.rng.random() < 0.7)):
            for name, shape in sums.items():
                if wanted:
                    self.dense(drawn, f"{prefix}{name}", FLOAT32, shape, written=prefix == "dstart_")
        drawn.call.parameter_grads = parameters
        if parameters:
            for name, shape in (("dalpha", of_queries), ("dbeta", state["maximum"]), ("dbias", of_queries)):
                self.dense(drawn, name, FLOAT32, shape, written=True)

    def _moments(self, drawn: Drawn) -> None:
        self.strided(drawn, "x", self.dtype, (self.batch, self.key_heads, self.rows, self.dim))
        self._mask_or_boundaries(drawn)
        self.dense(drawn, "count", INT64, (self.sequences,), written=True)
        for name in ("total", "squares"):
            self.dense(drawn, name, FLOAT64, (self.sequences, self.key_heads, self.dim), written=True)

    def _match(self, drawn: Drawn) -> None:
        queries = self._queries_and_keys(drawn, self.packed)
        if self.rng.random() < 0.3:
            self.strided(drawn, "query_mask", BOOL, (self.batch, queries))
        points = (self.rng.randint(2, 4), self.rng.randint(2, 4))
        self.dense(drawn, "table", FLOAT64, points)
        for name in ("step_log2_t", "step_log2_length", "squared_scale"):
            setattr(drawn.call, name, self.rng.random() + 0.1)
        for name in ("alpha", "beta"):
            self.dense(drawn, name, FLOAT64, (self.sequences, self.key_heads), written=True)

    def _block(self, drawn: Drawn) -> None:
        one_block = drawn.function == "block_forward" and not self.packed and self.rng.random() < 0.3
        drawn.call.one_block, drawn.call.is_causal = one_block, not one_block and self.rng.random() < 0.5
        drawn.call.block_size, drawn.call.scale = self.rng.choice((1, 3, 16, 64, 200)), 0.3
        queries = self._qkv(drawn, same_rows=not one_block)
        if drawn.function == "block_backward":
            self._gradients(drawn, queries)
        else:
            self.result(drawn, "out", (self.batch, self.key_heads * self.groups, queries, self.value_dim))

    def _diag(self, drawn: Drawn) -> None:
        heads, backward = self.key_heads * self.groups, drawn.function == "diag_backward"
        drawn.call.is_causal, drawn.call.parameter_grads = self.rng.random() < 0.5, self.rng.random() < 0.5
        drawn.call.block_size, drawn.call.scale = self.rng.choice((1, 3, 16, 64, 200)), 0.3
        self._qkv(drawn, same_rows=True)
        of_out, dim = (self.batch, heads, self.rows, self.value_dim), self.dim
        if self.rng.random() < 0.4:
            dim = self.rng.choice((1, 8, 33))
            for name, own in (("lln_q", heads), ("lln_k", self.key_heads)):
                self.strided(drawn, name, self.dtype, (self.batch, own, self.rows, dim))
                if backward:
                    self.result(drawn, f"d{name}", (self.batch, own, self.rows, dim))
        of_queries, of_keys = (self.sequences, heads, dim), (self.sequences, self.key_heads, dim)
        parameters = {"alpha": of_queries, "beta": of_keys, "bias": of_queries}
        for name, shape in parameters.items():
            self.dense(drawn, name, FLOAT32, shape)
            if backward and drawn.call.parameter_grads:
                self.dense(drawn, f"d{name}", FLOAT32, shape, written=True)
        for name, shape in {"maximum": of_keys, "summed": (*of_keys, self.value_dim), "normaliser": of_keys}.items():
            self.dense(drawn, name, FLOAT32, shape, written=not backward)
        self._weight(drawn, self.rows)
        if not backward:
            self.result(drawn, "out", of_out)
            if self.rng.random() < 0.5:
                self.result(drawn, "lln_out", of_out)
            return
        self._gradients(drawn, self.rows)
        if self.rng.random() < 0.5:
            self.strided(drawn, "lln_out", self.dtype, of_out)
            self.dense(drawn, "dweight", FLOAT32, of_out[:3], written=True)

    def _step(self, drawn: Drawn) -> None:
        self.rows, self.packed, self.sequences, drawn.rows = 1, False, self.batch, 1
        heads, size, drawn.call.scale = self.key_heads * self.groups, self.rng.choice((1, 5, 64)), 0.3
        self._qkv(drawn, same_rows=True)
        dim = self.dim
        if self.rng.random() < 0.4:
            dim = self.rng.choice((1, 8, 33))
            for name, own in (("lln_q", heads), ("lln_k", self.key_heads)):
                self.strided(drawn, name, self.dtype, (self.batch, own, 1, dim))
        of_queries, of_keys = (self.batch, heads, dim), (self.batch, self.key_heads, dim)
        for name, shape in {"alpha": of_queries, "beta": of_keys, "bias": of_queries}.items():
            self.dense(drawn, name, FLOAT32, shape)
        for name, shape in {"maximum": of_keys, "summed": (*of_keys, self.value_dim), "normaliser": of_keys}.items():
            dtype = FLOAT32 if name == "maximum" else FLOAT64
            self.dense(drawn, f"start_{name}", dtype, shape)
            self.dense(drawn, name, dtype, shape, written=True)
        self._weight(drawn, 1)
        self.result(drawn, "out", (self.batch, heads, 1, self.value_dim))
        rows = (self.batch, self.key_heads, size)
        for end in ("", "_after"):
            self.dense(drawn, f"keys{end}", self.dtype, (*rows, self.dim), written=bool(end))
            self.dense(drawn, f"values{end}", self.dtype, (*rows, self.value_dim), written=bool(end))
            self.dense(drawn, f"counts{end}", BOOL, (self.batch, size), written=bool(end))
            self.dense(drawn, f"started{end}", BOOL, (self.batch,), written=bool(end))
        filled = as_words([self.rng.randrange(size) for _ in range(self.batch)])
        self._place(drawn, "filled", INT64, (self.batch,), (1,), filled)
        self.dense(drawn, "filled_after", INT64, (self.batch,), written=True)

    def _near_far(self, drawn: Drawn) -> None:
        heads, call = self.key_heads * self.groups, drawn.call
        call.is_causal, call.parameter_grads = self.rng.random() < 0.5, self.rng.random() < 0.5
        call.block_size, call.scale = self.rng.choice((1, 3, 16, 64, 200)), 0.3
        call.neighbours, call.first_tokens = self.rng.choice((0, 0, 1, 2)), self.rng.choice((0, 0, 1, 4, 30))
        self._qkv(drawn, same_rows=True)
        of_queries, of_keys = (self.sequences, heads, self.dim), (self.sequences, self.key_heads, self.dim)
        parameters = {"alpha": of_queries, "beta": of_keys, "bias": of_queries}
        for name, shape in parameters.items():
            self.dense(drawn, name, FLOAT32, shape)
        self.dense(drawn, "weights", FLOAT32, (self.batch, heads, 4))
        if drawn.function == "near_far_forward":
            self.result(drawn, "out", (self.batch, heads, self.rows, self.value_dim))
            return
        self._gradients(drawn, self.rows)
        if call.parameter_grads:
            for name, shape in {**parameters, "weights": (self.sequences, heads, 4)}.items():
                self.dense(drawn, f"d{name}", FLOAT32, shape, written=True)

    def _near_far_step(self, drawn: Drawn) -> None:
        batch, heads, keys, first = self.batch, self.key_heads * self.groups, self.key_heads, self.rng.choice((1, 4))
        drawn.call.scale = 0.3
        self.strided(drawn, "q", self.dtype, (batch, heads, 1, self.dim))
        for prefix, rows in (("", self.rows), ("first_", first)):
            self.strided(drawn, f"{prefix}k", self.dtype, (batch, keys, rows, self.dim))
            self.strided(drawn, f"{prefix}v", self.dtype, (batch, keys, rows, self.value_dim))
            self.strided(drawn, "key_mask" if not prefix else "first_mask", BOOL, (batch, rows))
        of_keys = (batch, keys, self.dim)
        for name in ("alpha", "bias"):
            self.dense(drawn, name, FLOAT32, (batch, heads, self.dim))
        self.dense(drawn, "weights", FLOAT32, (batch, heads, 4))
        self.dense(drawn, "total", FLOAT64, (batch,))
        self.dense(drawn, "value_mean", FLOAT64, (batch, keys, self.value_dim))
        for name in ("beta", "maximum"):
            self.dense(drawn, name, FLOAT32, of_keys)
        for name in ("key_mean", "key_spread", "normaliser"):
            self.dense(drawn, name, FLOAT64, of_keys)
        for name in ("product", "summed"):
            self.dense(drawn, name, FLOAT64, (*of_keys, self.value_dim))
        self.result(drawn, "out", (batch, heads, 1, self.value_dim))

    def _weight(self, drawn: Drawn, queries: int) -> None:
        rows = self.rng.choice((1, queries))
        self.strided(drawn, "weight", FLOAT32, (self.batch, self.key_heads * self.groups, rows))

    def _qkv(self, drawn: Drawn, same_rows: bool) -> int:
        queries = self._queries_and_keys(drawn, same_rows)
        self.strided(drawn, "v", self.dtype, (self.batch, self.key_heads, self.rows, self.value_dim))
        return queries

    def _queries_and_keys(self, drawn: Drawn, same_rows: bool) -> int:
        queries = self.rows if same_rows else self.rng.choice((1, 7, 50))
        self.strided(drawn, "q", self.dtype, (self.batch, self.key_heads * self.groups, queries, self.dim))
        self.strided(drawn, "k", self.dtype, (self.batch, self.key_heads, self.rows, self.dim))
        self._mask_or_boundaries(drawn)
        return queries

    def _mask_or_boundaries(self, drawn: Drawn) -> None:
        if self.packed:
            self._place(drawn, "cu_seqlens", INT64, (len(self.edges),), (1,), as_words(self.edges))
        if self.rng.random() < 0.3:
            self.strided(drawn, "key_mask", BOOL, (self.batch, self.rows))

    def _gradients(self, drawn: Drawn, queries: int) -> None:
        heads = self.key_heads * self.groups
        self.strided(drawn, "grad", self.dtype, (self.batch, heads, queries, self.value_dim))
        self.result(drawn, "dq", (self.batch, heads, queries, self.dim))
        self.result(drawn, "dk", (self.batch, self.key_heads, self.rows, self.dim))
        self.result(drawn, "dv", (self.batch, self.key_heads, self.rows, self.value_dim))

    def strided(self, drawn: Drawn, name: str, dtype: int, shape: tuple[int, ...], features_last: bool = False) -> None:
        """Dimensions in any order in memory; of what is read, some repeated, and features perhaps apart."""
        order = list(range(len(shape) - features_last))
        self.rng.shuffle(order)
        strides = [0] * len(shape)
        step = 1
        if features_last:
            strides[-1], step = 1, shape[-1]
        elif self.rng.random() < 0.3:
            step = 2
        for i in order:
            if not features_last and self.rng.random() < 0.1:
                continue  # repeated
            strides[i] = step
            step *= shape[i]
        self._place(drawn, name, dtype, shape, tuple(strides))

    def result(self, drawn: Drawn, name: str, shape: tuple[int, ...]) -> None:
        self.strided(drawn, name, self.dtype, shape, features_last=True)
        drawn.written.append(name)

    def dense(self, drawn: Drawn, name: str, dtype: int, shape: tuple[int, ...], written: bool = False) -> None:
        strides, step = [], 1
        for size in reversed(shape):
            strides.append(step)
            step *= size
        self._place(drawn, name, dtype, shape, tuple(reversed(strides)))
        if written:
            drawn.written.append(name)

    def _place(
        self,
        drawn: Drawn,
        name: str,
        dtype: int,
        shape: tuple[int, ...],
        strides: tuple[int, ...],
        contents: bytes = b"",
    ) -> None:
        last = sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
        contents = contents or self.rng.randbytes((last + 1) * BYTES[dtype])  # NaN and infinity among them
        view: View = getattr(drawn.call, name)
        view.data, view.bytes, view.dtype, view.rank = self.memory.allocate(contents), len(contents), dtype, len(shape)
        view.size[: len(shape)], view.stride[: len(shape)] = shape, strides
        drawn.views.append(name)


def as_words(numbers: list[int]) -> bytes:
    return struct.pack(f"={len(numbers)}q", *numbers)


# A damage changes a call and says whether no call could survive it.
Damage = Callable[[random.Random, Memory, Drawn, Call], bool]


def some_view(rng: random.Random, drawn: Drawn, call: Call) -> tuple[str, Any]:
    name = rng.choice(drawn.views)
    return name, getattr(call, name)


def too_little_memory(rng: random.Random, memory: Memory, drawn: Drawn, call: Call) -> bool:
    _, view = some_view(rng, drawn, call)
    left = rng.choice((0, view.bytes - 1, rng.randrange(view.bytes))) if view.bytes > 0 else 0
    view.data, view.bytes = memory.allocate(rng.randbytes(left)), left
    return True


def fewer_bytes_said(rng: random.Random, memory: Memory, drawn: Drawn, call: Call) -> bool:
    _, view = some_view(rng, drawn, call)
    view.bytes = rng.choice((0, -1, view.bytes - 1, -view.bytes, -(2**63)))
    return True


def no_pointer(rng: random.Random, memory: Memory, drawn: Drawn, call: Call) -> bool:
    some_view(rng, drawn, call)[1].data = None
    return True


def another_dtype(rng: random.Random, memory: Memory, drawn: Drawn, call: Call) -> bool:
    name, view = some_view(rng, drawn, call)
    view.dtype = rng.choice([code for code in (*BYTES, 7, -1, 2**62) if code != view.dtype])
    return not (name == "x" and view.dtype in INPUT_DTYPES)


def missing(rng: random.Random, memory: Memory, drawn: Drawn, call: Call) -> bool:
    name = rng.choice(drawn.views)
    setattr(call, name, View())
    if name == "lln_out" and drawn.function == "diag_forward":
        return False
    return name not in ("key_mask", "first_mask", "query_mask", "cu_seqlens", "bias", "dweight")


def larger(rng: random.Random, memory: Memory, drawn: Drawn, call: Call) -> bool:
    name, view = some_view(rng, drawn, call)
    i = rng.randrange(max(view.rank, 1)) % 4
    apart = view.stride[i] > 0 and name != "weight"  # one for all rows may become one for each
    view.size[i] = min(view.size[i] + rng.choice((1, 2, 7, *FAR) if apart else (1, 2, 7)), 2**63 - 1)
    return bool(apart)


def smaller(rng: random.Random, memory: Memory, drawn: Drawn, call: Call) -> bool:
    _, view = some_view(rng, drawn, call)
    i = rng.randrange(max(view.rank, 1)) % 4
    view.size[i] = rng.choice((0, max(view.size[i] - 1, 0)))
    return False


def negative(rng: random.Random, memory: Memory, drawn: Drawn, call: Call) -> bool:
    _, view = some_view(rng, drawn, call)
    i = rng.randrange(max(view.rank, 1)) % 4
    of = rng.choice((view.size, view.stride))
    of[i] = rng.choice((-1, -of[i] - 1, -(2**31), -(2**62), -(2**63)))
    return True


def longer_stride(rng: random.Random, memory: Memory, drawn: Drawn, call: Call) -> bool:
    _, view = some_view(rng, drawn, call)
    i = rng.randrange(max(view.rank, 1)) % 4
    view.stride[i] = min(view.stride[i] + rng.choice((1, 2, 7, *FAR)), 2**63 - 1)
    return bool(view.size[i] > 1)


def shorter_stride(rng: random.Random, memory: Memory, drawn: Drawn, call: Call) -> bool:
    _, view = some_view(rng, drawn, call)
    i = rng.randrange(max(view.rank, 1)) % 4
    view.stride[i] = rng.choice((0, 1, max(view.stride[i] - 1, 0)))
    return False


def another_rank(rng: random.Random, memory: Memory, drawn: Drawn, call: Call) -> bool:
    _, view = some_view(rng, drawn, call)
    view.rank = rng.choice([rank for rank in (-1, 0, 1, 2, 3, 4, 5, 2**40, -(2**63)) if rank != view.rank])
    return True


def not_aligned(rng: random.Random, memory: Memory, drawn: Drawn, call: Call) -> bool:
    _, view = some_view(rng, drawn, call)
    width = BYTES.get(view.dtype, 1)
    if view.bytes <= 0 or width == 1:
        return False
    view.data = memory.allocate(rng.randbytes(view.bytes + 1)) + 1
    return True


def wrong_boundaries(rng: random.Random, memory: Memory, drawn: Drawn, call: Call) -> bool:
    if "cu_seqlens" not in drawn.views or (view := call.cu_seqlens).bytes < 8:
        return False
    edges = list(struct.unpack(f"={view.bytes // 8}q", rng.randbytes(view.bytes // 8 * 8)))
    if rng.random() < 0.8:  # sorted, and one of them elsewhere
        edges = sorted(rng.randint(0, drawn.rows) for _ in edges)
        edges[0], edges[-1] = 0, drawn.rows
        edges[rng.randrange(len(edges))] += rng.choice((-1, 1, 1000, -1000, 10**9, -(10**9), 2**60, -(2**60)))
    view.data = memory.allocate(as_words(edges))
    return edges != sorted(edges) or edges[0] != 0 or edges[-1] != drawn.rows


def wrong_number(rng: random.Random, memory: Memory, drawn: Drawn, call: Call) -> bool:
    choices: dict[str, tuple[Any, ...]] = {"isa": (-1, 3, 2**40, -(2**63)), "threads": (0, -1, 1025, 2**62, -(2**63))}
    if isinstance(call, BlockCall | DiagCall | NearFarCall):
        choices["block_size"] = (0, -1, -(2**63))
    if isinstance(call, NearFarCall):
        choices["neighbours"] = choices["first_tokens"] = (-1, -(2**63))
    if isinstance(call, MatchCall):
        for name in ("step_log2_t", "step_log2_length"):
            choices[name] = (0.0, -1.0, float("nan"), float("inf"))
        choices["first_log2_t"] = (float("nan"), float("inf"))
    name = rng.choice(list(choices))
    setattr(call, name, rng.choice(choices[name]))
    return True


def another_kind(rng: random.Random, memory: Memory, drawn: Drawn, call: Call) -> bool:
    """What the call is asked to do, rather than on what."""
    known = ("is_causal", "parameter_grads", "one_block", "center_keys")
    flags = [name for name in known if hasattr(call, name)]
    if isinstance(call, BlockCall | DiagCall | NearFarCall) and rng.random() < 0.5:
        sizes = [name for name in ("block_size", "neighbours", "first_tokens") if hasattr(call, name)]
        setattr(call, rng.choice(sizes), rng.choice((1, 2, 2**31, 2**62, 2**63 - 1)))
    elif flags:
        setattr(call, rng.choice(flags), rng.choice((0, 1, -1, 2**40)))
    return False


def swapped(rng: random.Random, memory: Memory, drawn: Drawn, call: Call) -> bool:
    """One of the tensors that are read in place of another."""
    read = [name for name in drawn.views if name not in drawn.written]
    name, other = rng.choice(read), rng.choice(read)
    setattr(call, name, getattr(call, other))
    return False


def rubbish_elsewhere(rng: random.Random, memory: Memory, drawn: Drawn, call: Call) -> bool:
    """In a field that this call has no use for, or that says it is empty."""
    unused = [name for name, kind in call._fields_ if kind is View and name not in drawn.views]
    if not unused:
        return False
    view = getattr(call, rng.choice(unused))
    ctypes.memmove(ctypes.addressof(view), rng.randbytes(ctypes.sizeof(View)), ctypes.sizeof(View))
    view.dtype = rng.choice((0, 0, *BYTES))
    if view.dtype:  # where it is looked at, what it says of its memory is true
        view.data, view.bytes = memory.allocate(rng.randbytes(64)), 64
    return False


DAMAGES: tuple[Damage, ...] = (
    too_little_memory, fewer_bytes_said, no_pointer, another_dtype, missing, larger, smaller, negative, longer_stride,
    shorter_stride, another_rank, not_aligned, wrong_boundaries, wrong_number, another_kind, swapped, rubbish_elsewhere,
)  # fmt: skip
CALLS_OF_ONE_DRAWING = 20


@dataclass
class Tally:
    calls: int = 0
    refused: int = 0
    reasons: set[str] = field(default_factory=set)


def fuzz(calls: int, seed: int) -> Tally:
    """Make so many calls; raises AssertionError at the first that does what no call may."""
    rng, tally = random.Random(seed), Tally()
    while tally.calls < calls:
        memory = Memory()
        try:
            drawn = Drawing(rng, memory).make()
            _run(drawn, drawn.call, memory, (), False, tally)
            for _ in range(CALLS_OF_ONE_DRAWING - 1):
                damages = rng.sample(DAMAGES, rng.choice((1, 1, 1, 2, 3)))
                call = type(drawn.call).from_buffer_copy(drawn.call)
                hopeless = [damage(rng, memory, drawn, call) for damage in damages]
                # With several, one may undo another: then anything may come of it, within the memory there is.
                _run(drawn, call, memory, tuple(damages), hopeless == [True], tally)
        finally:
            memory.free()
    return tally


def _run(
    drawn: Drawn, call: Call, memory: Memory, damages: tuple[Damage, ...], must_refuse: bool, tally: Tally
) -> None:
    written = {getattr(call, name).data for name in drawn.written}
    answer = library().functions[drawn.function](ctypes.byref(call))
    what = f"call {tally.calls}: {drawn.function} after {[damage.__name__ for damage in damages] or 'no damage'}"
    changed = memory.changed()
    assert changed <= written, f"{what} wrote to what it only reads"
    if answer is not None:
        assert not changed, f"{what} was refused ({answer!r}) after it had written"
        assert damages, f"{what} was refused: {answer!r}"
        tally.refused += 1
        tally.reasons.add(answer.decode())
    else:
        assert not must_refuse, f"{what} was not refused"
    memory.restore(changed)
    tally.calls += 1
