"""Measurements of real engines, from the files that a user names.

A folder stands for the files in it that are measurements: CSV tables with the columns of `validation.silicon`, and
recorded runs, of which `<name>_requests.jsonl` and `<name>_meta.json` lie side by side. Reports name files by their
last part alone, so that the same data give the same bytes wherever they lie.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from disagg_engine.catalogue import Catalogue
from disagg_simulator.errors import MeasurementError
from disagg_simulator.validation.runs import EngineRun, read_run
from disagg_simulator.validation.silicon import Silicon, read_silicon

from .errors import UsageError

_REQUESTS = "_requests.jsonl"
_META = "_meta.json"
_COLUMN = "silicon_tpot_ms"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurements:
    """What was found. At least one of the two is not empty."""

    silicon: tuple[Silicon, ...]
    runs: tuple[EngineRun, ...]


def read_measurements(paths: Sequence[str], catalogue: Catalogue) -> Measurements:
    """All measurements of those files and folders, in the order of their names. Raises `UsageError`."""
    tables: list[Path] = []
    runs: list[Path] = []
    for name in dict.fromkeys(paths):
        path = Path(name)
        before = len(tables) + len(runs)
        for file in sorted(path.iterdir()) if path.is_dir() else [path]:
            if file.name.endswith(_REQUESTS):
                runs.append(file)
            elif file.suffix == ".csv" and (not path.is_dir() or _COLUMN in _first_line(file)):
                tables.append(file)
            elif not path.is_dir():
                raise UsageError(
                    f"{name} is no measurement; a .csv table or a *{_REQUESTS} beside its *{_META} is needed"
                )
        if len(tables) + len(runs) == before:
            raise UsageError(f"{name} holds no measurements: no .csv with a column {_COLUMN} and no *{_REQUESTS}")
    try:
        return Measurements(
            silicon=tuple(
                read_silicon(_text(file).splitlines(), source=file.name, catalogue=catalogue)
                for file in dict.fromkeys(tables)
            ),
            runs=tuple(_run(file, catalogue) for file in dict.fromkeys(runs)),
        )
    except MeasurementError as error:
        raise UsageError(str(error)) from None


def _run(requests: Path, catalogue: Catalogue) -> EngineRun:
    meta = requests.with_name(requests.name.removesuffix(_REQUESTS) + _META)
    return read_run(
        _text(meta),
        _text(requests).splitlines(),
        meta_source=meta.name,
        source=requests.name,
        catalogue=catalogue,
    )


def _first_line(file: Path) -> str:
    return _text(file).partition("\n")[0]


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{file}: {(error.strerror or str(error)).lower()}") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"{file}: not a text file ({error.reason} at byte {error.start})") from None
