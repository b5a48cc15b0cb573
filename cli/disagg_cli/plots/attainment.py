"""Attainment against rate: both objectives on their own and together, and where the goodput lies."""

from __future__ import annotations

from collections.abc import Sequence

from disagg_cli.plots.canvas import BLACK, BLUE, GREY, ORANGE, RED, canvas, headline
from disagg_load.report import Slo
from disagg_load.shell.tables import show_seconds
from disagg_simulator.goodput import Trial


def draw_attainment(
    trials: Sequence[Trial], *, goodput: float | None, target: float, slo: Slo, caption: str, gpus: int, path: str
) -> None:
    """Draw trials (ascending rates) and, where there is one, the goodput in requests/s."""
    rates = [trial.rate for trial in trials]
    with canvas(path) as (figure, axes):
        headline(figure, "SLO attainment against rate", caption)
        axes.axhline(100 * target, color=GREY, linewidth=1.5, linestyle=(0, (6, 4)), zorder=1)
        axes.text(
            0.995, target * 100 - 1.5, f"{100 * target:g} % wanted",
            transform=axes.get_yaxis_transform(), ha="right", va="top", color=GREY, fontsize=14,
        )  # fmt: skip
        axes.fill_between(
            rates,
            [100 * trial.low for trial in trials],
            [100 * trial.high for trial in trials],
            color=BLUE,
            alpha=0.15,
            linewidth=0,
        )
        axes.plot(
            rates,
            [100 * trial.attainment.both for trial in trials],
            color=BLUE,
            linewidth=7,
            label="both (band: 95 % confidence)",
        )
        # Thin and broken, on top of the thick line, so that all three are seen where they run together.
        axes.plot(
            rates,
            [100 * trial.attainment.ttft for trial in trials],
            color=ORANGE,
            linewidth=3.5,
            linestyle=(0, (1, 3)),
            label=f"first token within {show_seconds(slo.ttft_seconds)} (TTFT)",
        )
        axes.plot(
            rates,
            [100 * trial.attainment.tpot for trial in trials],
            color=BLACK,
            linewidth=2.5,
            linestyle=(0, (5, 4)),
            label=f"each further token within {show_seconds(slo.tpot_seconds)} (TPOT)",
        )
        if goodput:
            axes.axvline(goodput, color=BLUE, linewidth=1.5, linestyle=(0, (6, 4)))
            per_gpu = f"\n{goodput / gpus:.3g} a GPU" if gpus > 1 else ""
            right = goodput > sum(axes.get_xlim()) / 2
            axes.annotate(
                f"goodput\n{goodput:.4g} requests/s{per_gpu}",
                (goodput, 40),
                xytext=(-12 if right else 12, 0),
                textcoords="offset points",
                ha="right" if right else "left",
                color=BLUE,
                fontweight="bold",
            )
        else:
            axes.text(
                0.5, 0.5, "infeasible: no rate keeps both promises",
                transform=axes.transAxes, ha="center", color=RED, fontweight="bold", fontsize=20,
            )  # fmt: skip
        axes.set_ylim(0, 103)
        axes.set_xlim(left=0)
        axes.set_xlabel("offered load (requests/s)")
        axes.set_ylabel("requests that keep the promise (%)")
        axes.legend(loc="lower left", bbox_to_anchor=(0, 0.02))
