"""Compiling the kernels for GPUs that are not here, and reading what the assembler says of them.

A launch is caught before it runs: arguments become a signature (the address and strides of a contiguous bfloat16 tensor are
multiples of 16, its last stride is 1), and the same source, sizes and options that would run are compiled for a target.
"""

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

SHARED_MEMORY = {80: 163 * 1024, 90: 227 * 1024, 100: 227 * 1024}  # that a program may use
INSTRUCTIONS = ("HMMA", "HGMMA", "UTCHMMA", "MUFU", "LDG", "LDGSTS", "STG", "STL", "LDL", "FFMA")
TYPES = {
    torch.float32: "*fp32", torch.float64: "*fp64", torch.float16: "*fp16", torch.bfloat16: "*bf16",
    torch.int32: "*i32", torch.int64: "*i64", torch.uint8: "*u8",
}  # fmt: skip


@dataclass(frozen=True)
class Launch:
    kernel: Any
    arguments: dict[str, Any]
    options: dict[str, int]

    @property
    def name(self) -> str:
        return str(self.kernel.fn.__name__)


@dataclass(frozen=True)
class Compiled:
    registers: int
    stack: int
    shared: int
    instructions: dict[str, int]

    @property
    def tensor_cores(self) -> int:
        return sum(self.instructions.get(i, 0) for i in ("HMMA", "HGMMA", "UTCHMMA"))

    @property
    def spills(self) -> int:
        return self.instructions.get("STL", 0) + self.instructions.get("LDL", 0)


@contextmanager
def caught() -> Iterator[list[Launch]]:
    """Kernels that would be launched inside, in their order; none of them runs."""
    from triton.runtime import JITFunction

    found: list[Launch] = []

    def catch(kernel: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        options = {n: kwargs.pop(n) for n in ("num_warps", "num_stages") if n in kwargs}
        arguments = dict(zip(kernel.arg_names, args, strict=False)) | kwargs
        found.append(Launch(kernel, {n: arguments[n] for n in kernel.arg_names}, options))

    run, JITFunction.run = JITFunction.run, catch
    try:
        yield found
    finally:
        JITFunction.run = run


def compiled(launch: Launch, arch: int) -> Compiled:
    """The launch, compiled for an NVIDIA GPU."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource, compile

    signature, constants, attributes = {}, {}, {}
    for position, (parameter, value) in enumerate(zip(launch.kernel.params, launch.arguments.values(), strict=True)):
        signature[parameter.name] = _signature(value, (position,), parameter.is_constexpr, constants, attributes)
    source = ASTSource(fn=launch.kernel, signature=signature, constexprs=constants, attrs=attributes)
    made = compile(source, target=GPUTarget("cuda", arch, 32), options=launch.options)
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(made.asm["cubin"])
        file.flush()
        usage, listing = _tool("cuobjdump", "--dump-resource-usage", file.name), _tool("nvdisasm", file.name)
    return Compiled(
        int(re.findall(r"REG:(\d+)", usage)[0]),
        int(re.findall(r"STACK:(\d+)", usage)[0]),
        made.metadata.shared,
        dict(Counter(re.findall(rf"\b({'|'.join(INSTRUCTIONS)})\b", listing))),
    )


def _signature(value: Any, path: tuple[int, ...], constant: bool, constants: dict, attributes: dict) -> Any:
    if isinstance(value, tuple):
        parts = [_signature(v, (*path, i), False, constants, attributes) for i, v in enumerate(value)]
        return type(value)(*parts)
    if isinstance(value, Tensor):
        attributes[path] = [["tt.divisibility", 16]]
        return TYPES[value.dtype]
    if constant or value is None or value == 1:
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
