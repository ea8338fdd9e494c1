"""What the demo shows: two tables in the terminal and two plots, drawn from its JSON."""

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from rich.console import Console
from rich.table import Table

from lln.experiments.demo import METHODS, TITLES

COLOURS = {"softmax": "#444444", "lln": "#d95f02", "lln_diag": "#1b7f79"}


def print_tables(result: dict[str, Any], console: Console) -> None:
    settings, training, times = result["settings"], result["training"], result["times"]
    table = Table(title=f"After {settings['steps']} steps of {settings['batch']} x {settings['length']} bytes")
    for heading in ("", *(TITLES[name] for name in METHODS)):
        table.add_column(heading, justify="right" if heading else "left")
    rows = {
        "training loss (last 20 steps)": lambda r: f"{sum(r['loss'][-20:]) / len(r['loss'][-20:]):.3f}",
        "validation loss": lambda r: f"{r['validation_loss']:.3f}",
        "temperature before": lambda r: f"{r['temperature_before']:.2f}",
        "temperature after": lambda r: f"{r['temperature_after']:.2f}",
        "time per step": lambda r: f"{1e3 * r['seconds_per_step']:.0f} ms",
        "parameters": lambda r: f"{r['parameters']:,}",
    }
    for label, show in rows.items():
        table.add_row(label, *(show(training[name]) for name in METHODS))
    console.print(table)

    lengths = list(times["softmax"])
    table = Table(title="Attention alone, forward + backward, time as a ratio to softmax")
    for heading in ("length", "softmax", *(TITLES[name] for name in METHODS[1:])):
        table.add_column(heading, justify="right")
    for length in lengths:
        softmax = times["softmax"][length]
        ratios = (f"{times[name][length] / softmax:.3f}" for name in METHODS[1:])
        table.add_row(f"{int(length):,}", f"{1e3 * softmax:.1f} ms", *ratios)
    console.print(table)


def plot(result: dict[str, Any], folder: Path) -> list[Path]:
    return [_plot_training(result, folder / "training.png"), _plot_times(result, folder / "time.png")]


def _plot_training(result: dict[str, Any], path: Path) -> Path:
    figure, axes = plt.subplots(figsize=(7, 4.2), layout="constrained")
    for name in METHODS:
        loss = result["training"][name]["loss"]
        window = max(1, len(loss) // 15)
        smooth = [sum(loss[max(0, i - window + 1) : i + 1]) / min(i + 1, window) for i in range(len(loss))]
        axes.plot(loss, color=COLOURS[name], alpha=0.2, linewidth=0.8)
        axes.plot(smooth, color=COLOURS[name], label=TITLES[name], linewidth=1.8)
    axes.set(
        xlabel="step", ylabel="loss (nats per masked byte)", title="Masked bytes of the standard library's sources"
    )
    axes.legend(frameon=False)
    axes.grid(alpha=0.3)
    return _save(figure, path)


def _plot_times(result: dict[str, Any], path: Path) -> Path:
    figure, axes = plt.subplots(figsize=(7, 4.2), layout="constrained")
    for name in METHODS:
        times = result["times"][name]
        axes.loglog(
            [int(n) for n in times], [1e3 * t for t in times.values()], "o-", color=COLOURS[name], label=TITLES[name]
        )
    axes.set(xlabel="sequence length", ylabel="milliseconds", title="Attention, forward + backward (2 heads of 64)")
    axes.legend(frameon=False)
    axes.grid(alpha=0.3, which="both")
    return _save(figure, path)


def _save(figure: Any, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    plt.close(figure)
    return path
