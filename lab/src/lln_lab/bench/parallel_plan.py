"""Time and memory of a training step over P devices, on paper: this scheme, ring attention and all-to-all over heads.

With N tokens, L layers of width E = H D, P devices and b bytes a number; a device does so many operations a second, and
its link carries so many bytes. A device has n = N / P tokens. Operations forward, for each token of a layer (backward:
twice as many):

    the layer's matrices      24 E^2                      projections 8 E^2, feed-forward of 4 E 16 E^2
    LLN+Diag                  4 D E + 4 w E               states and reading them; blocks of w
    softmax                   4 N E                       for ring and all-to-all

Bytes that a device receives in a layer, forward and backward:

    LLN+Diag                  4 H D (Dv + 2) (P - 1)      4 H D (Dv + 1) (P - 1)          float32, whatever N is
    ring                      2 b n E (P - 1)             4 b n E (P - 1)                 keys and values; and their gradients
    all-to-all                4 b n E (P - 1) / P         4 b n E (P - 1) / P             q, k, v and the output; H >= P

A ring hides its exchange behind its products: the longer of both counts. The others wait: the sum counts. Memory of a
device: 16 bytes a weight (float32, its gradient, Adam's two), and a L n E numbers of activations, with a = 34 in the layers
and all attentions alike; LLN adds P states of H D (Dv + 2) numbers.
"""

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Setting:
    tokens: int = 1_048_576
    layers: int = 12
    width: int = 768
    heads: int = 12
    devices: int = 8
    block_size: int = 64
    vocabulary: int = 256
    bytes_per_number: int = 2
    operations: float = 300e12  # a second, of a device
    bandwidth: float = 50e9  # bytes a second, of a device's link
    activations: float = 34.0  # numbers a token, layer and unit of width

    @property
    def head_dim(self) -> int:
        return self.width // self.heads

    @property
    def weights(self) -> int:
        return self.layers * 12 * self.width**2 + self.vocabulary * self.width


def state_numbers(heads: int, dim: int, value_dim: int) -> tuple[int, int]:
    """What a process sends in a layer and sample: forward, backward."""
    return heads * dim * (value_dim + 2), heads * dim * (value_dim + 1)


def planned(x: Setting) -> dict[str, Any]:
    """Seconds and bytes a step for each scheme."""
    own = x.tokens / x.devices
    dense = 24 * x.width**2
    forward, backward = state_numbers(x.heads, x.head_dim, x.head_dim)
    b, others = x.bytes_per_number, x.devices - 1
    schemes = {
        "LLN+Diag": (4 * x.head_dim * x.width + 4 * x.block_size * x.width, 4 * (forward + backward) * others, False),
        "ring, softmax": (4 * x.tokens * x.width, 6 * b * own * x.width * others, True),
        "all-to-all, softmax": (4 * x.tokens * x.width, 8 * b * own * x.width * others / x.devices, False),
    }
    found = {}
    for name, (operations, received, hidden) in schemes.items():
        compute = 3 * x.layers * own * (dense + operations) / x.operations
        exchange = x.layers * received / x.bandwidth
        memory = 16 * x.weights + x.activations * x.layers * own * x.width * b
        if name == "LLN+Diag":
            memory += 4 * forward * x.devices
        fits = "" if name != "all-to-all, softmax" or x.heads >= x.devices else f"needs {x.devices} heads"
        found[name] = {
            "compute_seconds": compute, "exchange_seconds": exchange, "received_bytes_a_layer": received,
            "step_seconds": max(compute, exchange) if hidden else compute + exchange, "memory_bytes": memory,
            "cannot": fits,
        }  # fmt: skip
    return {"setting": asdict(x), "schemes": found}
