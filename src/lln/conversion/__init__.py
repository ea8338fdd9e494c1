"""Any torch model made linear: find its attention, fit, replace, save, take back."""

from lln.conversion.convert import Converted, convert, unload
from lln.conversion.distil import distil
from lln.conversion.files import description, load, rebuild, save
from lln.conversion.installed import converted_sites, softmax_again

__all__ = [
    "Converted", "convert", "converted_sites", "description", "distil", "load", "rebuild", "save", "softmax_again", "unload",
]  # fmt: skip
