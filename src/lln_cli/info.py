"""`lln info`: what is installed, which backends work and why the others do not, and what matching is calibrated for."""

import importlib.metadata
import platform

from rich.console import Console
from rich.table import Table

HEAD_SIZES = (8, 16, 32, 64, 128, 256)
BEYOND = "below it the narrow limit continues, above it T is clamped; other head sizes are interpolated"
OPTIONAL = ("transformers", "accelerate", "pandas", "matplotlib")


def info() -> None:
    """Print versions, backends and the calibrated range of matching."""
    import torch

    from lln import __version__
    from lln.matching import DEFAULT_TARGET, TARGETS
    from lln.ops.lln import attention

    console = Console()
    console.print(f"lln-attention {__version__}, Python {platform.python_version()}, torch {torch.__version__}")
    console.print(f"optional packages: {', '.join(_version_of(name) for name in OPTIONAL)}")
    threads = f"{torch.get_num_threads()} threads"
    console.print(f"devices: cpu ({threads})" + "".join(f", {name}" for name in _accelerators()))

    table = Table(title="Backends, in the order they are tried")
    table.add_column("name")
    table.add_column("available")
    for backend in attention.backends:
        reason = backend.unavailable()
        note = "yes" if backend.automatic else "yes, on request only: it is the reference"
        table.add_row(backend.name, note if reason is None else f"no: {reason}")
    console.print(table)

    table = Table(title="Matching: calibrated range of T, the variance of softmax's scores", caption=BEYOND)
    table.add_column("head size", justify="right")
    for target in TARGETS:
        table.add_column(f"{target} (default)" if target == DEFAULT_TARGET else target, justify="right")
    for size in HEAD_SIZES:
        table.add_row(str(size), *(_range(target, size) for target in TARGETS))
    console.print(table)


def _range(target: str, size: int) -> str:
    if target == "paper":
        return "a formula"
    from lln.matching import calibrated_range

    low, high = calibrated_range(target, size)
    return f"{low:.3g} - {high:.3g}"


def _version_of(name: str) -> str:
    try:
        return f"{name} {importlib.metadata.version(name)}"
    except importlib.metadata.PackageNotFoundError:
        return f"{name} is not installed"


def _accelerators() -> list[str]:
    import torch

    found = (
        [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())] if torch.cuda.is_available() else []
    )
    return [*found, "mps"] if torch.backends.mps.is_available() else found
