"""Loaders and generators of data."""
