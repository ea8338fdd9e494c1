"""The laboratory of lln-attention: the paper's experiments, benchmarks, their data and their report."""
