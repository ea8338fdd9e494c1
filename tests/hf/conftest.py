"""Tiny random models of every family, made on the spot: nothing is downloaded."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"

import pytest

pytest.importorskip("transformers", reason="lln.hf needs transformers: pip install 'lln-attention[hf]'")
