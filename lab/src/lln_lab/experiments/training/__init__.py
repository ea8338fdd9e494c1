"""Training runs that can be killed at any moment and end with the same numbers, on Hugging Face's Trainer."""

from lln_lab.experiments.training.budget import Budget
from lln_lab.experiments.training.run import Run, train

__all__ = ["Budget", "Run", "train"]
