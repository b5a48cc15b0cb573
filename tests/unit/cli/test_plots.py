"""Plots: drawn, the same every time, and refused with what would be right."""

import sys
from pathlib import Path
from typing import Any

import pytest

BASE = ("--model", "opt-13b", "--gpu", "a100-80gb", "--workload", "chat", "--requests", "60")
MAGIC = {".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}


@pytest.mark.parametrize("suffix", [".png", ".svg", ".pdf"])
def test_the_name_says_the_kind_and_the_same_figures_give_the_same_bytes(
    said: Any, tmp_path: Path, suffix: str
) -> None:
    paths = [tmp_path / f"{number}{suffix}" for number in range(2)]
    flags = [part for path in paths for part in ("--plot", str(path))]
    said("simulate", *BASE, "--rate", "2", *flags)
    first, second = (path.read_bytes() for path in paths)
    assert first == second
    assert first.startswith(MAGIC[suffix])


def test_a_timeline_of_any_instance(said: Any, tmp_path: Path) -> None:
    paths = [tmp_path / f"{name}.svg" for name in ("prefill-0", "decode-0")]
    for path in paths:
        said(
            *("simulate", *BASE, "--rate", "4", "--prefill", "1", "--decode", "1", "--plot", f"timeline={path}"),
            *("--timeline-instance", path.stem, "--timeline-window", "2:6"),
        )
    assert paths[0].read_bytes() != paths[1].read_bytes()


def test_attainment_against_rate(said: Any, tmp_path: Path) -> None:
    path = tmp_path / "attainment.svg"
    text = said("goodput", *BASE, "--plot", str(path))
    assert "goodput" in text
    assert path.stat().st_size > 10_000


@pytest.mark.parametrize("flags", [("--rates", "1,2,3", "--ratios", "1W,1P1D"), ("--ratios", "1W,1P1D", "--goodput")])
def test_sweeps(said: Any, tmp_path: Path, flags: tuple[str, ...]) -> None:
    path = tmp_path / "sweep.svg"
    said("sweep", *BASE, *flags, "--processes", "1", "--plot", str(path))
    assert path.stat().st_size > 5_000


def test_a_run_without_a_single_answer_is_drawn_too(said: Any, tmp_path: Path) -> None:
    said("simulate", *BASE, "--rate", "2", "--kv-capacity-tokens", "10", "--plot", str(tmp_path / "empty.png"))
    assert (tmp_path / "empty.png").exists()


@pytest.mark.parametrize("flag", ["picture.gif", "timeline=picture"])
def test_other_kinds_of_files_are_refused_before_the_work(refused: Any, flag: str) -> None:
    assert ".png, .svg, .pdf" in refused("simulate", *BASE, "--rate", "2", "--plot", flag)


def test_unknown_instances_list_the_known_ones(said: Any, tmp_path: Path, refused: Any) -> None:
    flags = ("simulate", *BASE, "--rate", "2", "--plot", f"timeline={tmp_path / 'a.png'}")
    assert "worker-0" in refused(*flags, "--timeline-instance", "worker-9")
    assert "--timeline-window" in refused(*flags, "--timeline-window", "6:2")


def test_without_matplotlib_the_extra_is_named(refused: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    text = refused("simulate", *BASE, "--rate", "2", "--plot", str(tmp_path / "a.png"), status=1)
    assert "pip install matplotlib" in text
    assert "disagg[plots]" in text


ENDLESS = ("--model", "opt-13b", "--gpu", "a100-80gb", "--workload", "chat", "--requests", "1000000000")
"""A run for which memory would not do: what is refused here is refused before it starts."""


@pytest.mark.parametrize(
    ("command", "flag"),
    [("simulate", "--plot"), ("simulate", "--json"), ("goodput", "--plot"), ("goodput", "--json"), ("sweep", "--plot"),
     ("sweep", "--csv")],
)  # fmt: skip
def test_a_place_that_can_not_be_written_is_refused_before_the_work(
    refused: Any, tmp_path: Path, command: str, flag: str
) -> None:
    text = refused(command, *ENDLESS, flag, str(tmp_path / "no" / "a.png"), status=1)
    assert "can't be written: no such file or directory" in text
    (tmp_path / "folder.png").mkdir()
    assert "is a directory" in refused(command, *ENDLESS, flag, str(tmp_path / "folder.png"), status=1)


def test_an_unknown_kind_of_plot_is_refused(refused: Any, tmp_path: Path) -> None:
    assert "timeline=FILE" in refused("simulate", *ENDLESS, "--plot", f"timelin={tmp_path / 'a.png'}")


def drawn_figure(draw: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The figure that `draw()` saves, laid out."""
    from matplotlib.figure import Figure

    seen: list[Any] = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, path, **options: seen.append(figure))
    draw()
    seen[0].canvas.draw()
    return seen[0]


def test_no_legend_and_no_promise_lies_over_a_curve(said: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(tmp_path / "a.png")
    figure = drawn_figure(lambda: said("simulate", *BASE, "--rate", "2", "--plot", path), monkeypatch)
    for axes in figure.axes:
        panel = axes.get_window_extent()
        words = [text for text in axes.texts if "promised" in text.get_text()]
        assert words
        for box in (each.get_window_extent() for each in (*words, axes.get_legend()) if each is not None):
            assert box.y0 >= panel.y1 or box.y1 <= panel.y0
            assert 0 <= box.x0 <= box.x1 <= figure.bbox.x1


def test_a_curve_without_a_goodput_says_so(said: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flags = ("goodput", *BASE, "--ttft", "1ms", "--plot", str(tmp_path / "a.png"))
    figure = drawn_figure(lambda: said(*flags, status=1), monkeypatch)
    assert any("infeasible" in text.get_text() for text in figure.axes[0].texts)
