"""A model as a graph that leaves torch: ONNX, or an exported program of torch's own operators for other exporters."""

from lln.onnx.export import export, portable

__all__ = ["export", "portable"]
