"""Passes over the calibration data of any torch model, as it is: what each attention is asked, and the fit to its answers."""

import torch
from torch import Tensor, nn

from lln.conversion.call import AttentionCall
from lln.conversion.closed_form import normal_equations, set_matched, set_weights
from lln.conversion.linear_site import AnySite, LinearSite, SiteOptions
from lln.conversion.parameters import LayerShape
from lln.conversion.pooled_statistics import PooledStatistics
from lln.conversion.runs import Run, run_all
from lln.conversion.sites import Site, Watcher, watching
from lln.near_far.fit import NearFarFit


def watch_statistics(
    model: nn.Module, runs: list[Run]
) -> tuple[dict[Site, PooledStatistics], dict[Site, SiteOptions], dict[Site, str]]:
    """Of each site: statistics of q and k, what was seen of its calls, and, of some, why it cannot be replaced."""
    statistics: dict[Site, PooledStatistics] = {}
    seen: dict[Site, SiteOptions] = {}
    differs: dict[Site, str] = {}

    def watch(site: Site, call: AttentionCall, _: Tensor) -> None:
        shape = LayerShape(call.q.shape[1], call.k.shape[1], call.q.shape[3], near_far=True)
        before = seen.get(site, _NOTHING)
        longest = max(before.longest or 0, call.q.shape[2], call.k.shape[2])
        now = SiteOptions(shape, causal=call.causal, cross=call.cross or before.cross, longest=longest)
        if site in seen and (now.shape, now.causal) != (seen[site].shape, seen[site].causal):
            differs[site] = "its heads or its direction change from call to call"
        seen[site] = now
        statistics.setdefault(site, PooledStatistics()).add(call)

    with watching(model, watch) as watched:
        run_all(model, runs)
    return statistics, seen, {**watched.refused, **differs}


_NOTHING = SiteOptions(LayerShape(0, 0, 0))


def matched(at: Site, options: SiteOptions, pooled: PooledStatistics) -> LinearSite:
    """A linear attention for a place of the model, with alpha, beta and w."""
    site = LinearSite(options)
    set_matched(site.parameters_of_heads, pooled, str(at))
    return site


def fit(model: nn.Module, runs: list[Run], sites: dict[Site, LinearSite]) -> dict[Site, float]:
    """The four weights of each head nearest to softmax's output; what is left of the error, over the output's power.

    All four are used. Hugging Face's front chooses among them by leaving texts out, for which each sample must be one.
    """
    own = {at: site.parameters_of_heads for at, site in sites.items()}

    def show(watch: Watcher) -> None:
        with watching(model, watch):
            run_all(model, runs)

    near = next(iter(sites.values())).near
    fits = normal_equations(show, own, near, sets={at for at, site in sites.items() if site.options.cross})
    set_weights(own, fits, NearFarFit.weights)
    return {at: float(error.mean()) for at in fits if (error := own[at].fit_error) is not None}


def measure(model: nn.Module, runs: list[Run], sites: dict[Site, AnySite]) -> dict[Site, float]:
    """The error of each site's output, over the output's power."""
    sums: dict[Site, list[float]] = {}

    def watch(at: Site, call: AttentionCall, out: Tensor) -> None:
        if at in sites:
            now = (float((sites[at].attend(call) - out).square().sum()), float(out.square().sum()))
            sums[at] = [a + b for a, b in zip(sums.get(at, (0.0, 0.0)), now, strict=True)]

    with watching(model, watch):
        run_all(model, runs)
    return {at: error / max(power, 1e-30) for at, (error, power) in sums.items()}


def device_of(model: nn.Module) -> torch.device:
    return next((x.device for x in model.parameters()), torch.device("cpu"))
