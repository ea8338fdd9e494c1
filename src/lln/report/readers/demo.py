"""`lln demo`: read as the experiment it is."""

from typing import Any

from lln.report.blocks import Block
from lln.report.readers import experiment
from lln.report.readers.reader import EXPERIMENTS, Reader

LABELS = {"softmax": "softmax", "lln": "LLN", "lln_diag": "LLN+Diag"}


def knows(data: dict[str, Any]) -> bool:
    return isinstance(data.get("training"), dict) and isinstance(data.get("times"), dict)


def title(data: dict[str, Any]) -> str | None:
    return "Demo: masked bytes of the standard library"


def training_curves(data: dict[str, Any]) -> list[Block]:
    return experiment.training_curves(_as_experiment(data))


def timing(data: dict[str, Any]) -> list[Block]:
    return experiment.timing(_as_experiment(data))


def runs(data: dict[str, Any]) -> list[Block]:
    return experiment.runs(_as_experiment(data))


READER = Reader(EXPERIMENTS, knows, title, (training_curves, timing, runs))


def _as_experiment(data: dict[str, Any]) -> dict[str, Any]:
    return {
        "runs": [
            {
                "label": LABELS.get(name, name),
                "history": [{"step": step, "loss": loss} for step, loss in enumerate(run["loss"], 1)],
                "steps": len(run["loss"]),
                "parameters": run["parameters"],
                "seconds_per_step": run["seconds_per_step"],
                "evaluation": {
                    "validation_loss": run["validation_loss"],
                    "temperature_before": run["temperature_before"],
                    "temperature_after": run["temperature_after"],
                },
            }
            for name, run in data["training"].items()
        ],
        "timing": {
            "lengths": [int(length) for length in next(iter(data["times"].values()), {})],
            "series": [
                {"label": LABELS.get(name, name), "seconds": list(times.values())}
                for name, times in data["times"].items()
            ],
        },
    }
