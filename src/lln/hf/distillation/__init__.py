"""A converted model trained until it follows its softmax original."""
