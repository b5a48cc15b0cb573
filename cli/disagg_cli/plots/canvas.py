"""The figure under every plot: 16:9, large type, colours that colour-blind people can tell apart (Okabe and Ito)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from textwrap import wrap
from typing import Any

from disagg_cli.errors import CommandError, UsageError
from disagg_cli.places import check_place

SUFFIXES = (".png", ".svg", ".pdf")

ORANGE, BLUE, GREEN, RED, PINK, SKY = "#E69F00", "#0072B2", "#009E73", "#D55E00", "#CC79A7", "#56B4E9"
BLACK, GREY = "#000000", "#666666"

CAPTION_WIDTH = 110
"""Letters of a caption that fit beside each other."""

_STYLE: Any = {
    "figure.figsize": (12.8, 7.2),
    "figure.dpi": 100,
    "figure.facecolor": "white",
    "font.family": "DejaVu Sans",
    "font.size": 16,
    "axes.titlesize": 19,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 12,
    "axes.labelsize": 17,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#DDDDDD",
    "lines.linewidth": 3,
    "legend.fontsize": 15,
    "legend.frameon": False,
    "svg.hashsalt": "disagg",
    "svg.fonttype": "path",
}


def check_plot(path: str) -> None:
    """Whether a plot can be drawn and go there. Raises `UsageError` or `CommandError`."""
    if Path(path).suffix.lower() not in SUFFIXES:
        raise UsageError(f"{path}: a plot's name ends in {', '.join(SUFFIXES)}")
    try:
        import matplotlib  # noqa: F401
    except ModuleNotFoundError:
        raise CommandError("plots need matplotlib: pip install matplotlib (the extra disagg[plots])") from None
    check_place(path)


@contextmanager
def canvas(path: str, **panels: Any) -> Iterator[tuple[Any, Any]]:
    """A figure and its axes (`plt.subplots(**panels)`), saved as `path` in the end. Raises `CommandError`."""
    check_plot(path)
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    with matplotlib.rc_context(_STYLE):
        figure, axes = pyplot.subplots(layout="constrained", **panels)
        try:
            yield figure, axes
            _save(figure, path)
        finally:
            pyplot.close(figure)


def _save(figure: Any, path: str) -> None:
    metadata = {
        ".png": {"Software": None},
        ".svg": {"Date": None, "Creator": None},
        ".pdf": {"CreationDate": None, "Creator": None, "Producer": None},
    }[Path(path).suffix.lower()]
    try:
        figure.savefig(path, metadata=metadata)
    except OSError as error:
        raise CommandError(f"{path} can't be written: {(error.strerror or str(error)).lower()}") from None


def headline(figure: Any, title: str, caption: str) -> None:
    """The title over all panels, and below it in smaller type what was simulated."""
    lines = wrap(caption, CAPTION_WIDTH)[:2]
    figure.text(0.012, 0.985, title, fontsize=20, fontweight="bold", va="top")
    figure.text(0.012, 0.928, "\n".join(lines), fontsize=14, color=GREY, va="top", linespacing=1.4)
    figure.get_layout_engine().set(rect=(0, 0, 1, 0.88 if len(lines) == 1 else 0.845))
