"""Any torch model made linear: find its attention, fit, replace, save, take back."""

from lln.conversion.convert import Converted, convert, converted_sites, unload
from lln.conversion.files import description, load, rebuild, save

__all__ = ["Converted", "convert", "converted_sites", "description", "load", "rebuild", "save", "unload"]
