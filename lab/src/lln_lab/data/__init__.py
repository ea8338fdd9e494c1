"""The data of the experiments: loaders of the usual sets, generators, and an embedded default for every task."""

from lln_lab.data.catalog import load, names
from lln_lab.data.missing import MissingData
from lln_lab.data.task import Rows, TaskData, describe

__all__ = ["MissingData", "Rows", "TaskData", "describe", "load", "names"]
