"""How TTFT and TPOT are distributed over requests, against what was promised."""

from __future__ import annotations

from typing import Any

import numpy as np

from disagg_cli.plots.canvas import BLUE, GREEN, ORANGE, RED, canvas, headline
from disagg_load.report import Slo
from disagg_load.shell.tables import show_seconds, show_share
from disagg_simulator.figures import Figures
from disagg_simulator.recording import Recording
from disagg_simulator.statistics import Floats


def draw_cdf(recording: Recording, *, slo: Slo, caption: str, path: str) -> None:
    """Draw both distributions. Requests without an answer count as later than any time shown."""
    figures = Figures.of(recording)
    completed, many = figures.completed, figures.tokens > 1
    total = figures.arrival.size
    with canvas(path, ncols=2, sharey=True) as (figure, (first, further)):
        headline(figure, "Latency of requests", caption)
        scale = _panel(first, figures.ttft[completed], slo.ttft_seconds, total, "time to first token, TTFT")
        for name, values, colour, style in (
            ("of it queueing", figures.queueing, ORANGE, (0, (1, 1.2))),
            ("of it prefill", figures.prefill, GREEN, (0, (4, 1.5))),
        ):
            _curve(first, values[completed] * scale, total, color=colour, linestyle=style, label=name)
        first.set_ylabel("share of requests (%)")
        if completed.any():
            # Below the axis, where no curve and no promise can be.
            first.legend(loc="upper left", bbox_to_anchor=(-0.02, -0.12), ncols=3, columnspacing=1.2, handlelength=2.2)
        answers = total - int(np.count_nonzero(completed & ~many))
        _panel(further, figures.tpot[completed & many], slo.tpot_seconds, answers, "time per output token, TPOT")


def _panel(axes: Any, values: Floats, promised: float, total: int, title: str) -> float:
    """One distribution and its promise; the number of units that a second has on its axis."""
    unit, scale = ("ms", 1e3) if promised < 1 else ("s", 1.0)
    _curve(axes, values * scale, total, color=BLUE, linewidth=4, label="TTFT")
    met = float(np.count_nonzero(values <= promised)) / total if total else 0.0
    axes.axvline(promised * scale, color=RED, linewidth=2, linestyle=(0, (6, 4)))
    high = float(np.percentile(values, 99.5)) if values.size else promised
    right = max(high, promised * 1.05) * 1.1
    axes.set_xlim(0, right * scale)
    axes.set_ylim(0, 103)
    axes.annotate(
        f"{show_seconds(promised)} promised, kept by {show_share(met)}",
        (1 if promised > right / 2 else 0, 1),
        xytext=(0, 6),
        xycoords="axes fraction",
        textcoords="offset points",
        ha="right" if promised > right / 2 else "left",
        color=RED,
        fontweight="bold",
    )
    axes.set_xlabel(f"{title} ({unit})")
    return scale


def _curve(axes: Any, values: Floats, total: int, **style: Any) -> None:
    """The share of all requests that took at most so long."""
    values = np.sort(values[~np.isnan(values)])
    if values.size and total:
        share = np.arange(1, values.size + 1) * 100 / total
        axes.step(np.append(0.0, values), np.append(0.0, share), where="post", **style)
