"""TNN: Toeplitz neural network. Positions are mixed by coefficients of their distance, made by a small network.

    t_n = lambda^|n| MLP(n) in R^e,    (T v)_i = sum_j t_{i-j} * v_j
    g = (silu(x W_u) * T silu(x W_v)) W_o,    h = x + g                     GTU
    x + update = h + (silu(h' W_1) * h' W_2) W_3,    h' = norm(h)            GLU

Qin et al. 2023, "Toeplitz Neural Network for Sequence Modeling", sections 3.2-3.4: e = 3 E for the GTU and E for the
GLU, so that a block has the 12 E^2 weights of a transformer layer; lambda = 0.99. The product with T is a
convolution, done by FFT. Time O(N log N E), memory O(N E).
Departures: none known. (Sizes of the relative position encoder: 3 hidden layers of 32, ReLU and layer norm.)
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lln.zoo.card import Card
from lln.zoo.layer import Layer
from lln.zoo.mechanism import Shape
from lln.zoo.registry import register


@dataclass(frozen=True)
class Options:
    expansion: int = 3  # e / E
    decay: float = 0.99  # lambda
    encoder_dim: int = 32
    encoder_layers: int = 3

    def __post_init__(self) -> None:
        if self.expansion < 1 or self.encoder_dim < 1 or self.encoder_layers < 1:
            raise ValueError(f"expansion, encoder_dim and encoder_layers must be at least 1, got {self}")
        if not 0.0 < self.decay <= 1.0:
            raise ValueError(f"decay must be in (0, 1], got {self.decay}")


class RelativePositionEncoder(nn.Module):
    """n -> lambda^|n| MLP(n), (length of n, e)."""

    def __init__(self, options: Options, channels: int) -> None:
        super().__init__()
        self.decay = options.decay
        dim = options.encoder_dim
        layers: list[nn.Module] = [nn.Linear(1, dim)]
        for _ in range(options.encoder_layers):
            layers += [nn.LayerNorm(dim), nn.ReLU(), nn.Linear(dim, dim)]
        self.network = nn.Sequential(*layers, nn.LayerNorm(dim), nn.ReLU(), nn.Linear(dim, channels))

    def forward(self, distance: Tensor) -> Tensor:
        encoded: Tensor = self.network(distance[:, None])
        return encoded * self.decay ** distance.abs()[:, None]


CARD = Card(
    name="tnn",
    title="TNN",
    reference="Qin et al. 2023",
    equation="(silu(x Wᵤ) ⊙ T silu(x Wᵥ)) Wₒ, T Toeplitz with tₙ = λ^|n| MLP(n); then a GLU",
    time="N log N E",
    memory="N E",
    growth="n log n",
    causal=True,
    dense=True,
    learned=True,
    replaces_feed_forward=True,
)


@register(CARD, Options)
class Tnn(Layer):
    card = CARD

    def __init__(self, options: Options, shape: Shape) -> None:
        super().__init__(shape)
        self.options = options
        embed, wide = shape.embed_dim, options.expansion * shape.embed_dim
        self.mix_norm, self.glu_norm = nn.LayerNorm(embed), nn.LayerNorm(embed)
        self.mix_in, self.mix_out = nn.Linear(embed, 2 * wide), nn.Linear(wide, embed)
        self.glu_in, self.glu_out = nn.Linear(embed, 2 * embed), nn.Linear(embed, embed)
        self.encoder = RelativePositionEncoder(options, wide)

    def update(self, x: Tensor, key_mask: Tensor | None, is_causal: bool) -> Tensor:
        gate, v = F.silu(self.mix_in(self.mix_norm(x))).chunk(2, dim=-1)  # (B, N, e) each
        if key_mask is not None:
            v = v.masked_fill(~key_mask[..., None], 0.0)
        mixed = self.mix_out(gate * self._toeplitz(v, is_causal))
        left, right = self.glu_in(self.glu_norm(x + mixed)).chunk(2, dim=-1)
        update: Tensor = mixed + self.glu_out(F.silu(left) * right)
        return update

    def matrices(self, x: Tensor, key_mask: Tensor | None, is_causal: bool) -> Tensor:
        """T of each channel, (B, e, N, N)."""
        position = torch.arange(x.shape[1], device=x.device)
        apart = position[:, None] - position[None, :]
        toeplitz = self.encoder(apart.flatten().to(x.dtype)).unflatten(0, apart.shape).permute(2, 0, 1)
        if is_causal:
            toeplitz = toeplitz.tril()
        toeplitz = toeplitz[None].expand(x.shape[0], -1, -1, -1)
        return toeplitz if key_mask is None else toeplitz * key_mask[:, None, None, :]

    def _toeplitz(self, v: Tensor, is_causal: bool) -> Tensor:
        """T v as a convolution, with room enough that nothing wraps around."""
        length = v.shape[1]
        forward = self.encoder(torch.arange(length, device=v.device, dtype=v.dtype))  # t_0 ... t_{N-1}, (N, e)
        size = 1 << (2 * length - 1).bit_length()
        kernel = F.pad(forward, (0, 0, 0, size - length))
        if not is_causal and length > 1:
            backward = self.encoder(torch.arange(1 - length, 0, device=v.device, dtype=v.dtype))  # t_{1-N} ... t_{-1}
            kernel = torch.cat([forward, forward.new_zeros(size - 2 * length + 1, forward.shape[1]), backward])
        dtype = torch.float64 if v.dtype == torch.float64 else torch.float32  # no FFT in half precision on CPU
        with torch.autocast(v.device.type, enabled=False):
            # The position is the fast axis of the transforms.
            spectrum = torch.fft.rfft(v.to(dtype).transpose(1, 2), n=size) * torch.fft.rfft(kernel.to(dtype).t())
            return torch.fft.irfft(spectrum, n=size)[..., :length].transpose(1, 2).to(v.dtype)
