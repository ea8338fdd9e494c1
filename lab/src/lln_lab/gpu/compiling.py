"""Compiling Triton kernels for GPUs that are not here, and reading what the assembler says of them.

A launch is caught before it runs: arguments become a signature (the address and strides of a contiguous bfloat16 tensor are
multiples of 16, its last stride is 1), and the same source, sizes and options that would run are compiled for a target.
"""

import hashlib
import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

# Shared memory that a program may use, in bytes.
TARGETS = {"sm_80": 163 * 1024, "sm_90": 227 * 1024, "sm_100": 227 * 1024, "gfx942": 64 * 1024}
TENSOR_CORES = ("HMMA", "HGMMA", "UTCHMMA", "MFMA")
INSTRUCTIONS = (*TENSOR_CORES, "MUFU", "LDG", "LDGSTS", "STG", "STL", "LDL", "FFMA")
# The same in AMD's words.
AMD = {
    "MFMA": r"v_mfma_\w+", "MUFU": r"v_exp_f32\w*", "LDG": r"(?:global|buffer|flat)_load_\w+",
    "STG": r"(?:global|buffer|flat)_store_\w+", "STL": r"scratch_store_\w+", "LDL": r"scratch_load_\w+",
    "FFMA": r"v_(?:pk_)?fma(?:c)?_f32\w*",
}  # fmt: skip
TYPES = {
    torch.float32: "*fp32", torch.float64: "*fp64", torch.float16: "*fp16", torch.bfloat16: "*bf16",
    torch.int32: "*i32", torch.int64: "*i64", torch.uint8: "*u8", torch.bool: "*i1",
}  # fmt: skip


@dataclass(frozen=True)
class Launch:
    kernel: Any
    arguments: dict[str, Any]
    options: dict[str, int]
    grid: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        return str(self.kernel.fn.__name__)

    @property
    def entry(self) -> str:
        """As it is called in the table of tiles: blocks that compute LLN's rows as well are a kernel of their own."""
        far = self.arguments.get("far")
        return (
            "mixed_outputs" if far is not None and self.name == "block_outputs" and far.state is not None else self.name
        )

    def key(self, target: str) -> str:
        """Names what is compiled: source, signature, sizes, options and target."""
        import triton

        signature, constants, attributes = self.specialised()
        said = repr(
            (
                triton.__version__,
                sources(self.kernel),
                signature,
                sorted(constants.items()),
                sorted(attributes.items()),
            )
        )
        return hashlib.sha256(f"{said} {sorted(self.options.items())} {target}".encode()).hexdigest()[:32]

    def specialised(self) -> tuple[dict[str, Any], dict[tuple[int, ...], Any], dict[tuple[int, ...], Any]]:
        """Types, constants, and which values are multiples of 16."""
        signature: dict[str, Any] = {}
        constants: dict[tuple[int, ...], Any] = {}
        attributes: dict[tuple[int, ...], Any] = {}
        for position, (parameter, value) in enumerate(zip(self.kernel.params, self.arguments.values(), strict=True)):
            path = (position,)
            signature[parameter.name] = _signature(value, path, parameter.is_constexpr, constants, attributes)
        return signature, constants, attributes


def sources(kernel: Any) -> list[str]:
    """The source of a kernel and of what it calls, wherever it stands: in Triton's own key a new line above is a new kernel."""
    from triton.language import constexpr
    from triton.runtime import JITFunction

    found: dict[str, str] = {}
    waiting = [kernel]
    while waiting:
        one = waiting.pop()
        found[f"{one.fn.__module__}.{one.fn.__qualname__}"] = one.src
        for name in one.fn.__code__.co_names:
            used = one.fn.__globals__.get(name)
            if isinstance(used, JITFunction) and f"{used.fn.__module__}.{used.fn.__qualname__}" not in found:
                waiting.append(used)
            elif isinstance(used, constexpr):
                found[f"{one.fn.__module__}.{name}"] = repr(used.value)
    return [f"{name}: {text}" for name, text in sorted(found.items())]


@dataclass(frozen=True)
class Compiled:
    registers: int
    stack: int  # bytes a thread has outside of registers: what is spilled lies there
    shared: int
    instructions: dict[str, int]

    @property
    def tensor_cores(self) -> int:
        return sum(self.instructions.get(i, 0) for i in TENSOR_CORES)

    @property
    def spills(self) -> int:
        """Instructions that move what did not fit into registers."""
        return self.instructions.get("STL", 0) + self.instructions.get("LDL", 0)

    def fits(self, target: str) -> bool:
        """Nothing spilled, no more shared memory than there is, and something is read and written."""
        moves = min(
            self.instructions.get("LDG", 0) + self.instructions.get("LDGSTS", 0), self.instructions.get("STG", 0)
        )
        return self.stack == 0 and self.spills == 0 and self.shared <= TARGETS[target] and moves > 0


@contextmanager
def caught() -> Iterator[list[Launch]]:
    """Kernels that would be launched inside, in their order; none of them runs."""
    from triton.runtime import JITFunction

    found: list[Launch] = []

    def catch(kernel: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        options: dict[str, int] = {n: kwargs.pop(n) for n in ("num_warps", "num_stages", "num_ctas") if n in kwargs}
        arguments = dict(zip(kernel.arg_names, args, strict=False)) | kwargs
        grid = grid(arguments) if callable(grid) else grid
        found.append(Launch(kernel, {n: arguments[n] for n in kernel.arg_names}, options, tuple(grid)))

    run, JITFunction.run = JITFunction.run, catch
    try:
        yield found
    finally:
        JITFunction.run = run


def compiled(launch: Launch, target: str) -> Compiled:
    """The launch, compiled for "sm_80" and so on, or "gfx942"."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource, compile

    signature, constants, attributes = launch.specialised()
    source = ASTSource(fn=launch.kernel, signature=signature, constexprs=constants, attrs=attributes)
    card = GPUTarget("hip", target, 64) if target.startswith("gfx") else GPUTarget("cuda", int(target[3:]), 32)
    made = compile(source, target=card, options=launch.options)
    if target.startswith("gfx"):
        return _of_amd(made.asm["amdgcn"], made.metadata.shared)
    return _of_nvidia(made.asm["cubin"], made.metadata.shared)


def _of_nvidia(cubin: bytes, shared: int) -> Compiled:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        usage, listing = _tool("cuobjdump", "--dump-resource-usage", file.name), _tool("nvdisasm", file.name)
    return Compiled(
        int(re.findall(r"REG:(\d+)", usage)[0]),
        int(re.findall(r"STACK:(\d+)", usage)[0]),
        shared,
        dict(Counter(re.findall(rf"\b({'|'.join(INSTRUCTIONS)})\b", listing))),
    )


def _of_amd(assembly: str, shared: int) -> Compiled:
    def told(name: str) -> int:
        return int(re.findall(rf"\.{name}:\s*(\d+)", assembly)[0])

    counts = {name: len(re.findall(rf"\b{pattern}\b", assembly)) for name, pattern in AMD.items()}
    # Registers of the kind that matrix instructions write come beside the others; a thread has 512 of both.
    stack = told("private_segment_fixed_size") + 4 * told("vgpr_spill_count")
    return Compiled(told("vgpr_count"), stack, shared, {name: count for name, count in counts.items() if count})


def _signature(value: Any, path: tuple[int, ...], constant: bool, constants: dict, attributes: dict) -> Any:
    if isinstance(value, tuple):
        parts = [_signature(v, (*path, i), False, constants, attributes) for i, v in enumerate(value)]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    if isinstance(value, Tensor):
        attributes[path] = [["tt.divisibility", 16]]
        return TYPES[value.dtype]
    if constant or value is None or (value == 1 and not isinstance(value, float)):
        constants[path] = value
        return "constexpr"
    if isinstance(value, float):
        return "fp32"
    if value % 16 == 0:
        attributes[path] = [["tt.divisibility", 16]]
    return "i32"


def _tool(name: str, *arguments: str) -> str:
    from triton.backends import nvidia

    tool = Path(nvidia.__file__).parent / "bin" / name
    return subprocess.run([tool, *arguments], capture_output=True, text=True, check=True).stdout
