"""The zoo against what a user would install instead, layer for layer: same shapes, same options, same run, interleaved.

Each peer is a public package's self-attention layer with projections; ours is `lln.zoo.build` of the same mechanism.
A peer that is not installed is skipped and said to be. Ratios are theirs over ours: above 1, ours is faster.
"""

import importlib.metadata
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from lln import zoo
from lln.measuring.timing import interleaved


@dataclass(frozen=True)
class Size:
    """Width, heads and length, at batch 1."""

    embed_dim: int
    num_heads: int
    length: int

    @property
    def head_dim(self) -> int:
        return self.embed_dim // self.num_heads


@dataclass(frozen=True)
class Peer:
    """A package's layer, and the member and options that do the same."""

    package: str
    member: str
    make: Callable[[Size], nn.Module]
    options: Callable[[Size], dict[str, Any]]
    same: str  # what is set to be the same, and what still differs


SIZES = (Size(768, 12, 1024), Size(64, 2, 4096))


def _performer(size: Size) -> nn.Module:
    from performer_pytorch import SelfAttention

    made: nn.Module = SelfAttention(
        dim=size.embed_dim, heads=size.num_heads, dim_head=size.head_dim, nb_features=256, qkv_bias=True
    )
    return made


def _nystromformer(size: Size) -> nn.Module:
    from nystrom_attention import NystromAttention

    made: nn.Module = NystromAttention(
        dim=size.embed_dim, heads=size.num_heads, dim_head=size.head_dim, num_landmarks=64, residual_conv_kernel=33
    )
    return made


def _linformer(size: Size) -> nn.Module:
    from linformer import LinformerSelfAttention

    made: nn.Module = LinformerSelfAttention(dim=size.embed_dim, seq_len=size.length, heads=size.num_heads, k=256)
    return made


def _reformer(size: Size) -> nn.Module:
    from reformer_pytorch import LSHSelfAttention

    made: nn.Module = LSHSelfAttention(
        dim=size.embed_dim,
        heads=size.num_heads,
        bucket_size=64,
        n_hashes=2,
        attend_across_buckets=False,
        allow_duplicate_attention=False,
    )
    return made


def _local(size: Size) -> nn.Module:
    from local_attention import LocalMHA

    made: nn.Module = LocalMHA(
        dim=size.embed_dim, heads=size.num_heads, dim_head=size.head_dim, window_size=256, causal=False
    )
    return made


PEERS = (
    Peer("performer-pytorch", "performer", _performer, lambda s: {"features": 256}, "256 features"),
    Peer(
        "nystrom-attention",
        "nystromformer",
        _nystromformer,
        lambda s: {"landmarks": 64, "convolution": 33},
        "64 landmarks, 6 iterations, convolution of 33",
    ),
    Peer(
        "linformer", "linformer", _linformer, lambda s: {"projected_length": 256}, "projected length 256, heads share"
    ),
    Peer(
        "reformer-pytorch",
        "reformer",
        _reformer,
        lambda s: {"chunk": 64, "rounds": 2},
        "chunks of 64, 2 rounds, keys of the same bucket counted once",
    ),
    Peer(
        "local-attention",
        "longformer",
        _local,
        lambda s: {"window": 512, "global_tokens": 0},
        "256 on either side; the peer rounds windows to blocks and rotates positions",
    ),
)


def run(repeats: int = 7, progress: Callable[[str], None] = lambda what: None) -> dict[str, Any]:
    """Seconds of both and their ratio, for every peer that is installed and every size."""
    rows: list[dict[str, Any]] = []
    for peer in PEERS:
        version = _version(peer.package)
        for size in SIZES:
            row: dict[str, Any] = {"package": peer.package, "version": version, "member": peer.member, **asdict(size)}
            progress(f"{peer.package} N={size.length:,}")
            rows.append({**row, "same": peer.same, **(compare(peer, size, repeats) if version else {})})
    return {"repeats": repeats, "rows": rows}


def compare(peer: Peer, size: Size, repeats: int) -> dict[str, Any]:
    """{"forward": {...}, "train": {...}} with seconds of both and theirs over ours."""
    torch.manual_seed(0)
    shape = {"embed_dim": size.embed_dim, "num_heads": size.num_heads, "max_length": size.length}
    layers = {"ours": zoo.build(peer.member, **shape, **peer.options(size)), "theirs": peer.make(size)}
    x = torch.randn(1, size.length, size.embed_dim, requires_grad=True)
    found: dict[str, Any] = {}
    for kind, call in (("forward", _forward), ("train", _train)):
        timings = interleaved({name: call(layer, x) for name, layer in layers.items()}, repeats=repeats)
        ours, theirs = timings["ours"].median, timings["theirs"].median
        found[kind] = {"ours_seconds": ours, "theirs_seconds": theirs, "theirs_over_ours": theirs / ours}
    return found


def _forward(layer: nn.Module, x: Tensor) -> Callable[[], Any]:
    def call() -> None:
        with torch.no_grad():
            layer(x)

    return call


def _train(layer: nn.Module, x: Tensor) -> Callable[[], Any]:
    return lambda: layer(x).sum().backward()


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
