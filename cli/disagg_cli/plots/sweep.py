"""A sweep as one picture: attainment along the axis that varies most, or the goodput of each cell."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from disagg_cli.plots.canvas import BLACK, BLUE, GREEN, ORANGE, PINK, RED, SKY, canvas, headline

_COLOURS = (BLUE, ORANGE, GREEN, PINK, SKY, RED, BLACK)
_MARKERS = "osD^vP*X"
_AXES = {"slo_scale": "scale of both promises", "rate": "offered load (requests/s)"}


def draw_sweep(rows: Sequence[dict[str, Any]], *, caption: str, path: str) -> None:
    """Draw the rows of a sweep that could be simulated."""
    rows = [row for row in rows if not row["error"]]
    with canvas(path) as (figure, axes):
        if rows and "goodput_per_gpu" in rows[0]:
            headline(figure, "Goodput a GPU", caption)
            _bars(axes, rows)
        elif rows:
            headline(figure, "Requests that keep both promises", caption)
            _lines(axes, rows)


def _varying(rows: Sequence[dict[str, Any]]) -> list[str]:
    """What differs between rows and is not a result."""
    known = list(rows[0])[: list(rows[0]).index("slo_scale") + 1] if rows else []
    return [
        name for name in known if name not in ("gpus", "requests_per_second") and len({row[name] for row in rows}) > 1
    ]


def _label(row: dict[str, Any], names: Sequence[str]) -> str:
    return ", ".join(str(row[name]) if name == "ratio" else f"{name.replace('_', ' ')} {row[name]}" for name in names)


def _lines(axes: Any, rows: Sequence[dict[str, Any]]) -> None:
    names = _varying(rows)
    counts = {name: len({row[name] for row in rows}) for name in names if name in _AXES}
    along = max(counts, key=lambda name: (counts[name], name == "rate"), default="rate")
    series: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        series.setdefault(_label(row, [name for name in names if name != along]), []).append(row)
    for number, (label, points) in enumerate(series.items()):
        lower = 1 - number / max(1, len(series) - 1)  # The lower, the thicker: so curves that coincide are all seen.
        points = sorted(points, key=lambda row: float(row.get(along) or 0))
        axes.plot(
            [float(row.get(along) or 0) for row in points],
            [100 * row["attainment_both"] for row in points],
            color=_COLOURS[number % len(_COLOURS)],
            marker=_MARKERS[number % len(_MARKERS)],
            markersize=8 + 8 * lower,
            linewidth=2.5 + 6 * lower,
            label=label or "both promises kept",
        )
    axes.set_ylim(0, 103)
    axes.set_ylabel("requests that keep both (%)")
    axes.set_xlabel(_AXES[along])
    axes.legend(loc="best")


def _bars(axes: Any, rows: Sequence[dict[str, Any]]) -> None:
    names = _varying(rows)
    labels = [_label(row, names) or "goodput" for row in rows]
    values = [row["goodput_per_gpu"] for row in rows]
    best = max(values, default=0.0)
    bars = axes.barh(range(len(rows)), values, color=[BLUE if value == best else SKY for value in values], height=0.7)
    axes.bar_label(
        bars,
        [f"{row['goodput_per_gpu']:.3g}   ({row['goodput_requests_per_second']:.3g} on {row['gpus']})" for row in rows],
        padding=6,
    )
    axes.set_yticks(range(len(rows)), labels)
    axes.invert_yaxis()
    axes.set_xlim(0, best * 1.3 or 1)
    axes.set_xlabel("requests/s a GPU (in parentheses: requests/s of the whole, and on how many GPUs)")
    axes.grid(visible=False, axis="y")
