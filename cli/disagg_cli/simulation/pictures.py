"""Which plots a command line asks for, and what they are called."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import numpy as np

from disagg_cli.errors import UsageError
from disagg_cli.plots.attainment import draw_attainment
from disagg_cli.plots.canvas import check_plot
from disagg_cli.plots.cdf import draw_cdf
from disagg_cli.plots.timeline import busiest, draw_timeline, instance_named
from disagg_cli.simulation.runs import Run, slo_of
from disagg_cli.simulation.searches import trials_of
from disagg_cli.simulation.tables import describe
from disagg_simulator.deployment import Deployment
from disagg_simulator.goodput import Goodput

TIMELINE = "timeline="
POINTS = 16
"""Rates of an attainment curve, besides those that the search tried."""

BEYOND = 1.6
"""How far beyond the goodput the curve goes."""


def check_plots(plots: Sequence[str]) -> None:
    """Complain before the work instead of after it. Raises `UsageError` or `CommandError`."""
    for plot in plots:
        kind, equals, _ = plot.partition("=")
        if equals and kind.isalpha() and not plot.startswith(TIMELINE):
            raise UsageError(f"--plot is {plot!r}; it is FILE or {TIMELINE}FILE")
        check_plot(plot.removeprefix(TIMELINE))


def draw_plots(run: Run, arguments: argparse.Namespace) -> None:
    """The plots of one simulation."""
    result = run.result
    offered = result.stability.offered_requests_per_second
    rate = "" if offered is None else f"; {offered:.3g} requests/s offered"
    caption = f"{describe(result.deployment)}; {result.workload}{rate}"
    for plot in arguments.plot:
        if not plot.startswith(TIMELINE):
            draw_cdf(run.recording, slo=result.slo, caption=caption, path=plot)
            continue
        instance = instance_named(run.recording, arguments.timeline_instance)
        draw_timeline(
            run.recording,
            instance,
            window=arguments.timeline_window or busiest(instance),
            caption=caption,
            path=plot.removeprefix(TIMELINE),
        )


def draw_search(found: Goodput, deployment: Deployment, arguments: argparse.Namespace, workload: str) -> None:
    """Attainment against rate around the goodput, with the search's own trials and some in between."""
    middle = found.requests_per_second or found.nearest.rate
    evaluate = trials_of(arguments, deployment)
    known = {trial.rate: trial for trial in found.trials if trial.rate <= middle * BEYOND}
    for rate in np.linspace(middle * BEYOND / POINTS, middle * BEYOND, POINTS).tolist():
        known.setdefault(rate, evaluate(rate, found.search.requests))
    draw_attainment(
        [known[rate] for rate in sorted(known)],
        goodput=found.requests_per_second or None,
        target=found.search.target,
        slo=slo_of(arguments),
        caption=f"{describe(deployment)}; {workload}",
        gpus=deployment.gpus,
        path=arguments.plot,
    )
