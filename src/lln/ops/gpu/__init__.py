"""Kernels in Triton that several operations share. Nothing here is imported before a tensor on a GPU asks for it."""
