"""Drawn calls of the public functions, over everything that their contract takes. One seed is one call.

`python -m tests.independent.cases 1234` prints what seed 1234 is.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

import lln
from lln.ops.diag import diag
from tests.independent.oracle import Array, Problem

# Which keys count: the one place that knows what the functions call this argument.
KEY_MASK = "key_mask"

FUNCTIONS: dict[str, Callable[..., Any]] = {
    "lln": lln.lln_attention,
    "blocks": lln.block_diagonal_attention,
    "diag": lln.lln_diag_attention,
}
AVAILABLE = [backend.name for backend in diag.backends if backend.unavailable() is None]
PAIRS_AND_FEATURES = 600_000  # the oracle's largest array; what is drawn larger loses samples, heads, then features
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
LAYOUTS = (
    "contiguous", "heads inside", "features outside", "sliced", "every second", "offset",
    "one sample for all", "one head for all", "one token for all", "one number for all features",
)  # fmt: skip
MASKS = ("right", "left", "holes", "some empty", "all empty", "one key", "all count")
POISONS = (torch.nan, torch.inf, -torch.inf, 6e4, 0.0)


@dataclass(frozen=True)
class Case:
    """A call, small enough to read in a failure message."""

    function: str
    backend: str | None
    batch: int
    key_heads: int
    groups: int
    queries: int
    keys: int
    dim: int
    value_dim: int
    dtype: torch.dtype
    sigma: float
    spikes: str
    layouts: tuple[str, str, str, str]  # of q, k, v and of the output's gradient
    mask: str | None
    poison: float
    edges: tuple[int, ...] | None
    pieces: tuple[int, ...] | None
    causal: bool
    alpha: str
    beta: str
    bias: str | None
    mix: str
    block_size: int
    scale: float | None
    wants: frozenset[str]  # whose gradients are asked for
    seed: int

    @property
    def sequences(self) -> int:
        return self.batch if self.edges is None else len(self.edges) - 1


def draw(seed: int) -> Case:
    rng = np.random.default_rng([13, seed])

    def one_of(*options: Any) -> Any:
        return options[rng.integers(len(options))]

    def size(limit: int, *special: int) -> int:
        kind = rng.random()
        if kind < 0.3:
            return int(rng.integers(1, 9))
        if kind < 0.6:
            return one_of(*special)
        return int(rng.integers(1, (40 if kind < 0.85 else limit) + 1))

    function = one_of("lln", "lln", "blocks", "diag", "diag")
    dtype = DTYPES[rng.choice(4, p=(0.15, 0.15, 0.5, 0.2))]
    packed, causal = rng.random() < 0.25, rng.random() < 0.5
    queries = size(200, 1, 2, 15, 16, 17, 31, 33, 63, 64, 65, 127, 128, 129)
    keys = queries if causal or packed or function != "lln" or rng.random() < 0.3 else size(200, 1, 16, 64, 65, 128)
    dim, value_dim = size(70, 1, 4, 8, 16, 32, 33, 64), size(70, 1, 4, 8, 16, 32, 33, 64)
    key_heads, groups = int(rng.integers(1, 4)), one_of(1, 1, 2, 3)
    batch = 1 if packed else int(rng.integers(1, 4))
    while batch * key_heads * groups * queries * keys * dim > PAIRS_AND_FEATURES:
        if batch > 1:
            batch -= 1
        elif groups > 2 or (groups > 1 and key_heads == 1):
            groups -= 1
        elif key_heads > 1:
            key_heads -= 1
        else:
            dim = max(1, dim // 2)
    names = [*AVAILABLE, *AVAILABLE, None] if function != "blocks" else [None]
    backend, pieces = one_of(*names), None
    if causal and not packed and backend != "oracle" and function != "blocks" and rng.random() < 0.35:
        pieces = _pieces(queries, rng)
    edges = None
    if packed:
        inner = np.sort(rng.integers(0, queries + 1, size=rng.integers(0, 5)))
        if len(inner) and rng.random() < 0.3:
            inner[0] = 0  # an empty first sequence
        edges = (0, *(int(x) for x in inner), queries)
    every = ["q", "k", "v"] + ["alpha", "beta", "bias"] * (function != "blocks") + ["mix"] * (function == "diag")
    kind = rng.random()
    wants = every if kind < 0.6 else [] if kind < 0.7 else [x for x in every if rng.random() < 0.4]
    scales = ("number", "number of the array kind", "head", "feature", "head and feature", "sample", "everything")
    return Case(
        function=function, backend=backend, batch=batch, key_heads=key_heads, groups=groups, queries=queries,
        keys=keys, dim=dim, value_dim=value_dim, dtype=dtype,
        sigma=float(np.exp(rng.uniform(np.log(1e-3), np.log(64)))) if rng.random() < 0.5 else 1.0,
        spikes=one_of("none", "none", "none", "token of k", "feature of k", "token of q", "feature of q", "rising",
                      "falling", "zero keys", "zero queries", "far from zero"),
        layouts=tuple(LAYOUTS[0 if rng.random() < 0.4 else rng.integers(len(LAYOUTS))] for _ in range(4)),
        mask=None if packed or rng.random() < 0.4 else one_of(*MASKS),
        poison=one_of(*POISONS), edges=edges, pieces=pieces, causal=causal,
        alpha=one_of(*scales) + one_of("", "", ", of either sign", ", some zero", ", in the dtype of q"),
        beta=one_of(*scales) + one_of("", "", ", of either sign", ", some zero", ", in the dtype of q"),
        bias=None if rng.random() < 0.5 else one_of(*scales[1:]),
        mix=one_of("half", "number", "tensor", "head", "zero", "one"),
        block_size=one_of(1, 2, 7, 16, 32, 64, 64, 100, 256), scale=one_of(None, None, 0.3, 1.7),
        wants=frozenset(wants), seed=seed,
    )  # fmt: skip


def _pieces(length: int, rng: np.random.Generator) -> tuple[int, ...]:
    """A prefill in a few pieces, then perhaps some single steps."""
    steps = int(rng.integers(0, min(4, length)))
    cuts = np.unique([0, *rng.integers(1, length - steps + 1, size=2), length - steps])
    return (*(int(x) for x in np.diff(cuts)), *([1] * steps))


@dataclass(frozen=True)
class Call:
    """What the function is given, and the same in full shapes for the oracle."""

    arguments: dict[str, Tensor]  # those that may want gradients: q, k, v, alpha, beta, bias, mix
    options: dict[str, Any]
    upstream: Tensor  # gradient of the output
    problem: Problem
    upstream64: Array


def build(case: Case) -> Call:
    rng = np.random.default_rng([17, case.seed])
    heads, full = case.key_heads * case.groups, _compute_dtype(case.dtype)
    q = _tensor(case.sigma * rng.normal(size=(case.batch, heads, case.queries, case.dim)), case.dtype)
    k = _tensor(case.sigma * rng.normal(size=(case.batch, case.key_heads, case.keys, case.dim)), case.dtype)
    v = _tensor(np.exp(rng.normal()) * rng.normal(size=(*k.shape[:3], case.value_dim)), case.dtype)
    _spike(case.spikes, q, k, rng)
    upstream = _tensor(rng.normal(size=(*q.shape[:3], case.value_dim)), case.dtype)
    q, k, v, upstream = (lay_out(x, layout) for x, layout in zip((q, k, v, upstream), case.layouts, strict=True))

    counts = None if case.mask is None else _mask(case.mask, case.batch, case.keys, rng)
    clean_k, clean_v = k, v
    if counts is not None:
        gone = ~torch.from_numpy(counts)[:, None, :, None]
        clean_k, clean_v = (x.masked_fill(gone, 0.0) for x in (k, v))
        if not any("for all" in layout for layout in case.layouts[1:3]):  # those share memory with keys that count
            k.masked_fill_(gone, case.poison)
            v.masked_fill_(gone, case.poison)

    arguments = {"q": q, "k": k, "v": v}
    arguments["alpha"] = _scales(case.alpha, case.sequences, heads, case, full, rng)
    arguments["beta"] = _scales(case.beta, case.sequences, case.key_heads, case, full, rng)
    if case.bias is not None:
        arguments["bias"] = 2 * _scales(case.bias + ", of either sign", case.sequences, heads, case, full, rng)
    fixed = {"half": 0.5, "zero": 0.0, "one": 1.0}
    share = rng.random(heads if case.mix == "head" else ())
    arguments["mix"] = _tensor(fixed.get(case.mix, share), full)

    def whole(name: str, heads: int) -> Array:
        x = arguments.get(name, torch.zeros(()))
        return _array(x.expand(case.sequences, heads, 1, case.dim)[:, :, 0])

    problem = Problem(
        *(_array(x) for x in (q, clean_k, clean_v)), whole("alpha", heads), whole("beta", case.key_heads),
        whole("bias", heads), counts, None if case.edges is None else list(case.edges),
        None if case.pieces is None else list(case.pieces), case.causal, case.function != "blocks",
        case.function != "lln", case.block_size, case.dim**-0.5 if case.scale is None else case.scale,
        np.broadcast_to(_array(arguments["mix"]), heads),
    )  # fmt: skip
    options: dict[str, Any] = {"is_causal": case.causal}
    if counts is not None:
        options[KEY_MASK] = _mask_tensor(counts, case.seed)
    if case.edges is not None:
        options["cu_seqlens"] = torch.tensor(case.edges, dtype=(torch.int64, torch.int32)[case.seed % 2])
    if case.function != "lln":
        options |= {"block_size": case.block_size, "scale": case.scale}
    options["backend"] = case.backend or "auto"
    if case.backend == "native" and case.dtype == torch.float64:
        options["backend"] = "auto"
    return Call(arguments, options, upstream, problem, _array(upstream))


def lay_out(x: Tensor, layout: str) -> Tensor:
    """The values with other strides; "for all" repeats some of them without repeating memory."""
    if layout == "heads inside":
        return x.transpose(1, 2).contiguous().transpose(1, 2)
    if layout == "features outside":
        return x.permute(3, 0, 1, 2).contiguous().permute(1, 2, 3, 0)
    if layout == "offset":
        return torch.cat([x.new_full((3,), torch.nan), x.flatten()])[3:].view(x.shape)
    if layout == "sliced":
        wide = x.new_full([n + 3 for n in x.shape], torch.nan)
        return wide[1:-2, 2:-1, 3:, 1:-2].copy_(x)
    if layout == "every second":
        wide = x.new_full([2 * n for n in x.shape], torch.nan)
        return wide[::2, 1::2, ::2, 1::2].copy_(x)
    for dimension, name in enumerate(LAYOUTS[6:]):
        if layout == name:
            return x.narrow(dimension, 0, 1).expand(x.shape)
    return x


def _spike(kind: str, q: Tensor, k: Tensor, rng: np.random.Generator) -> None:
    token, feature, height = rng.integers(k.shape[2]), rng.integers(k.shape[3]), float(rng.choice([-40.0, 30.0, 80.0]))
    if kind == "token of k":
        k[:, :, token] += height
    elif kind == "feature of k":
        k[..., feature] += height
    elif kind == "token of q":
        q[:, :, token % q.shape[2]] += height
    elif kind == "feature of q":
        q[..., feature] += height
    elif kind in ("rising", "falling"):
        slope = 1.0 if kind == "rising" else -1.0
        k += slope * torch.arange(k.shape[2], dtype=torch.float32).to(k.dtype)[:, None]
    elif kind == "zero keys":
        k.zero_()
    elif kind == "zero queries":
        q.zero_()
    elif kind == "far from zero":
        q += height
        k -= height


def _mask(kind: str, batch: int, keys: int, rng: np.random.Generator) -> Array:
    position, lengths = np.arange(keys), rng.integers(1, keys + 1, size=(batch, 1))
    if kind == "right":
        return position < lengths
    if kind == "left":
        return position >= keys - lengths
    if kind == "one key":
        return position == lengths - 1
    if kind == "all count":
        return np.ones((batch, keys), bool)
    counts = rng.random((batch, keys)) < 0.6
    if kind == "some empty":
        counts[rng.integers(batch)] = False
    if kind == "all empty":
        counts[:] = False
    return counts


def _mask_tensor(counts: Array, seed: int) -> Tensor:
    """Masks have strides, too."""
    mask = torch.from_numpy(counts.copy())
    return mask.mT.contiguous().mT if seed % 3 == 0 else mask


def _scales(kind: str, sequences: int, heads: int, case: Case, full: torch.dtype, rng: np.random.Generator) -> Tensor:
    shape_of, _, change = kind.partition(", ")
    shape = {
        "number": (), "number of the array kind": (1,), "head": (heads, 1, 1), "feature": (case.dim,),
        "head and feature": (1, heads, 1, case.dim), "sample": (sequences, 1, 1, 1),
        "everything": (sequences, heads, 1, case.dim),
    }[shape_of]  # fmt: skip
    x = rng.uniform(0.3, 2.5, size=shape)
    if change == "of either sign":
        x = x * np.where(rng.random(shape) < 0.5, -1.0, 1.0)
    if change == "some zero":
        x = x * (rng.random(shape) < 0.6)
    return _tensor(x, case.dtype if change == "in the dtype of q" else full)


def _compute_dtype(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


def _tensor(x: Any, dtype: torch.dtype) -> Tensor:
    return torch.tensor(np.asarray(x, dtype=np.float64)).to(dtype)


def _array(x: Tensor) -> Array:
    return x.double().contiguous().numpy()


if __name__ == "__main__":
    print(draw(int(sys.argv[1])))
