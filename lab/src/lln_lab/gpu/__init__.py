"""The GPU kernels without a GPU: compiled ahead of time for cards that are not here, and what the assembler says of them."""
