"""Two reports side by side, whatever each of them was made by.

Replays and simulations share the names of their figures; what only one of them has is left out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from disagg_cli.errors import UsageError
from disagg_load.report import SCHEMA as REPLAY
from disagg_load.shell.tables import show_seconds, show_share
from disagg_simulator.report import SCHEMA as SIMULATION

COMPARISON = "disagg.dev/comparison/v1"

_POINTS = ("mean", "p50", "p90", "p99", "max")
_TIMES = {
    "ttft_seconds": "first token (TTFT)",
    "tpot_seconds": "per token (TPOT)",
    "tbt_seconds": "between tokens",
    "e2e_seconds": "whole request",
}
_SHARES = {"ttft": "TTFT kept", "tpot": "TPOT kept", "both": "both kept"}
_RATES = {
    "offered_requests_per_second": "offered requests/s",
    "throughput_requests_per_second": "answered requests/s",
    "throughput_tokens_per_second": "tokens/s",
    "good_requests_per_second": "good requests/s",
}
_COUNTS = {"requests": "requests", "completed": "completed", "output_tokens": "output tokens"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One figure of both. difference: B − A. relative: that over A; None where A is 0 or the figure is a share."""

    name: str
    title: str
    first: float | None
    second: float | None
    difference: float | None
    relative: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Two reports. sources: where each comes from. notes: what makes them hard to compare."""

    names: tuple[str, str]
    sources: tuple[str, str]
    figures: tuple[Figure, ...]
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return {"schema": COMPARISON, **asdict(self)}


def compare(first: dict[str, Any], second: dict[str, Any], *, names: tuple[str, str]) -> Comparison:
    """Compare two documents. Raises `UsageError` for what is no report."""
    documents = (first, second)
    for document, name in zip(documents, names, strict=True):
        if document.get("schema") not in (REPLAY, SIMULATION):
            raise UsageError(
                f"{name}: its schema is {document.get('schema')!r}; reports of replay ({REPLAY}) and simulate "
                f"({SIMULATION}) can be compared"
            )
    flat = [_flat(document) for document in documents]
    figures = tuple(
        _figure(key, title, flat[0].get(key), flat[1].get(key), share=key.startswith("attainment."))
        for key, title in _titles().items()
        if flat[0].get(key) is not None or flat[1].get(key) is not None
    )
    if not figures:
        raise UsageError(f"{names[0]} and {names[1]} have no figure in common")
    return Comparison(
        names=names, sources=(_source(first), _source(second)), figures=figures, notes=tuple(_notes(first, second))
    )


def _titles() -> dict[str, str]:
    titles = dict(_COUNTS) | dict(_RATES)
    for key, title in _TIMES.items():
        titles |= {f"{key}.{point}": f"{title} {point}" for point in _POINTS}
    return titles | {f"attainment.{key}": title for key, title in _SHARES.items()}


def _flat(document: dict[str, Any]) -> dict[str, float | None]:
    """The figures of a document under the names of `_titles`."""
    flat: dict[str, float | None] = {}
    for name, value in document.items():
        if isinstance(value, dict):
            flat.update({f"{name}.{key}": number for key, number in value.items() if _number(number)})
        elif _number(value):
            flat[name] = value
    if "stability.offered_requests_per_second" in flat:
        flat["offered_requests_per_second"] = flat["stability.offered_requests_per_second"]
    return flat


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _figure(name: str, title: str, first: float | None, second: float | None, *, share: bool) -> Figure:
    difference = None if first is None or second is None else second - first
    relative = None if difference is None or not first or share else difference / first
    return Figure(name=name, title=title, first=first, second=second, difference=difference, relative=relative)


def _source(document: dict[str, Any]) -> str:
    if document["schema"] == REPLAY:
        return f"{document.get('trace')} at {document.get('url')}"
    deployment = document.get("deployment") or {}
    return f"{document.get('workload')} simulated, {deployment.get('mode')} {deployment.get('model')}"


def _notes(first: dict[str, Any], second: dict[str, Any]) -> list[str]:
    notes = []
    if first.get("slo") != second.get("slo"):
        notes.append("the promises (SLOs) differ, so attainment and good requests can't be compared")
    for document, name in ((first, "A"), (second, "B")):
        if document.get("stable") is False:
            notes.append(f"{name} is unstable: its rate is beyond capacity")
        if document.get("late"):
            notes.append(f"in {name} the client sent {document['late']} requests late")
    return notes


def print_comparison(found: Comparison, console: Console) -> None:
    """The table."""
    for letter, name, source in zip("AB", found.names, found.sources, strict=True):
        console.print(f"[bold]{letter}[/bold] {escape(name)}: {escape(source)}", highlight=False, soft_wrap=True)
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("figure", no_wrap=True)
    for heading in ("A", "B", "B against A"):
        table.add_column(heading, justify="right")
    for figure in found.figures:
        show = _show(figure.name)
        values = ["-" if value is None else show(value) for value in (figure.first, figure.second)]
        table.add_row(figure.title, *values, _difference(figure))
    console.print(table)
    for note in found.notes:
        console.print(note, style="yellow", highlight=False, soft_wrap=True)


def _show(name: str) -> Callable[[float], str]:
    if "_seconds." in name:
        return show_seconds
    if name.startswith("attainment."):
        return show_share
    return (lambda value: f"{value:,.0f}") if name in _COUNTS else (lambda value: f"{value:,.2f}")


def _difference(figure: Figure) -> str:
    if figure.difference is None:
        return "-"
    if figure.name.startswith("attainment."):
        return f"{100 * figure.difference:+.1f} points"
    return "-" if figure.relative is None else f"{100 * figure.relative:+.1f} %"
