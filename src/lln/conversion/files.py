"""A conversion as a small file: the numbers of the linear attentions and what they belong to, without the model's own weights.

`save` writes safetensors whose metadata describe the sites; `load` gives them to a model with the same weights. The file holds
a hash of the weights it was fitted to, and is refused where they differ.
"""

import json
from pathlib import Path
from typing import Any

from torch import nn

from lln.conversion.installed import NAME, converted_sites, install_all
from lln.conversion.linear_site import AnySite, SiteOptions
from lln.conversion.torch_attention import open_up
from lln.conversion.zoo_site import make_site
from lln.tensor_files import digest, read_tensors, write_tensors

FORMAT, VERSION = "lln-conversion", 3
READ = (1, 2, 3)  # version 1 knew near-far attention alone, version 2 no moments in cross-attention


def description(model: nn.Module) -> dict[str, Any]:
    """What `rebuild` needs, as JSON can hold it: the options of each site."""
    sites = {
        path: [None if site is None else site.options.to_dict() for site in own]
        for path, own in converted_sites(model).items()
    }
    if not sites:
        raise ValueError("this model was not converted by lln.convert: there is nothing to describe")
    return {"format": FORMAT, "version": VERSION, "sites": sites}


def rebuild(model: nn.Module, described: dict[str, Any]) -> nn.Module:
    """A softmax model with the sites of a converted one, ready for that one's `load_state_dict`; in place, returned."""
    if described.get("format") != FORMAT or described.get("version") not in READ:
        raise ValueError(
            f"this release reads format {FORMAT!r}, versions {READ[0]} to {READ[-1]}; got {described.get('format')!r}, version "
            f"{described.get('version')!r}"
        )
    if converted_sites(model):
        raise ValueError("this model is converted already: lln.unload(model) gives its softmax back first")
    names = dict(model.named_modules())
    missing = sorted(set(described["sites"]) - set(names))
    if missing:
        raise ValueError(f"the description is of another model: this one has no module {missing[0]!r}")
    before, _ = open_up(model)
    sites = {path: _made(model.get_submodule(path), own) for path, own in described["sites"].items()}
    install_all(model, sites, before)
    return model


def _made(module: nn.Module, described: list[Any]) -> list[AnySite | None]:
    """The sites of a module, on its device."""
    made = [None if options is None else make_site(SiteOptions.from_dict(options)) for options in described]
    like = next(module.parameters(), None)
    return [site if site is None or like is None else site.to(like.device) for site in made]


def save(model: nn.Module, path: str | Path) -> Path:
    """Write the conversion of `model` to a safetensors file."""
    tensors = {name: x for name, x in model.state_dict().items() if _is_ours(name)}
    metadata = {**{k: json.dumps(v) for k, v in description(model).items()}, "base": weights_hash(model)}
    return write_tensors(path, tensors, metadata)


def load(model: nn.Module, path: str | Path, *, check: bool = True) -> nn.Module:
    """Give a softmax model the conversion that `save` wrote; in place, returned.

    check: False takes it although the model's weights are not those it was fitted to, after fine-tuning, say.
    """
    metadata, tensors = read_tensors(path)
    if not {"format", "version", "sites", "base"} <= set(metadata):
        raise ValueError(f"{path} is a safetensors file, but not one that lln.conversion.save wrote")
    if check and metadata["base"] != weights_hash(model):
        raise ValueError(
            f"{path} was fitted to other weights than this model has: convert the model anew, or pass check=False if it is the "
            "same model after further training"
        )
    rebuild(model, {name: json.loads(metadata[name]) for name in ("format", "version", "sites")})
    wrong = model.load_state_dict(tensors, strict=False)
    lacking = [name for name in wrong.missing_keys if _is_ours(name)]
    if lacking or wrong.unexpected_keys:
        raise ValueError(f"{path} does not hold what it describes: {(lacking or wrong.unexpected_keys)[0]!r}")
    return model


def weights_hash(model: nn.Module) -> str:
    """SHA-256 over the names, shapes and bytes of the model's own weights; the same before and after a conversion."""
    own = ((name, x) for name, x in sorted(model.state_dict().items()) if not _is_ours(name))
    return digest((f"{name} {tuple(x.shape)} {x.dtype}", x) for name, x in own)


def _is_ours(name: str) -> bool:
    return NAME in name.split(".")
