"""Calibrated constants as a document: which engine they were measured on, from how much, and how well they fit.

    kind: disagg-calibration
    version: 1
    sources: [silicon.csv]
    rule: …                       how rows were kept out of the fit
    pooled: {constants: {…}, fit: {…}}         all engines together; for those without an entry
    engines:
    - {model: llama-3.1-70b, gpu: h100, backend: vllm, precision: fp8, constants: {…}, fit: {…}}

Made by `disagg calibrate`. Names are the catalogue's. The text is for people to read and for programs to diff: numbers
are written with six significant digits and read back as they stand, so a document survives the round trip unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from disagg_engine.catalogue import Precision
from disagg_engine.catalogue.parse import Entry, normalise
from disagg_engine.errors import CatalogueError, SettingError, UnknownNameError
from disagg_engine.instance import Instance
from disagg_engine.timemodel.calibrated import Calibrated, CalibratedConstants

KIND = "disagg-calibration"
VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """What constants were fitted to, and the error of TPOT over exactly that (`mape`: mean absolute error, a share).

    The ranges say where they interpolate; outside they extrapolate by the formula.
    """

    rows: int
    mape: float
    concurrency: tuple[int, int]
    input_tokens: tuple[int, int]
    output_tokens: tuple[int, int]
    tensor: tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineKey:
    """A measured engine: a model on a GPU under a serving program, at a precision."""

    model: str
    gpu: str
    backend: str
    precision: Precision

    def __str__(self) -> str:
        return f"{self.model} {self.gpu} {self.backend} {self.precision}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """Constants and what they were fitted to."""

    constants: CalibratedConstants
    fit: Fit


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """All constants of one calibration. `pooled` is None where only single engines were fitted."""

    engines: Mapping[EngineKey, Fitted]
    pooled: Fitted | None = None
    sources: tuple[str, ...] = ()
    rule: str = ""

    def find(
        self, *, model: str, gpu: str, backend: str | None = None, precision: Precision | None = None
    ) -> tuple[EngineKey, Fitted] | None:
        """The one entry of that model and GPU (and backend and precision, where given); None if there is none.

        Raises SettingError, naming the choices, where several match.
        """
        found = [
            (key, fitted)
            for key, fitted in self.engines.items()
            if key.model == model
            and key.gpu == gpu
            and backend in (None, key.backend)
            and precision in (None, key.precision)
        ]
        if len(found) > 1:
            names = ", ".join(f"{key.backend}/{key.precision}" for key, _ in found)
            missing = "backend" if len({key.backend for key, _ in found}) > 1 else "precision"
            raise SettingError(field=missing, value=None, wanted=f"one of those measured for {model} on {gpu}: {names}")
        return found[0] if found else None

    def time_model(self, instance: Instance, *, backend: str | None = None) -> Calibrated:
        """The time model of `instance` with the constants of its engine, or the pooled ones where it has none.

        Its engine is that of its model, GPU and weight precision, and of `backend` where several were measured. Raises
        SettingError where several match, and UnknownNameError where none does and nothing is pooled.
        """
        engine = (instance.model.name, instance.gpu.name, instance.weight_precision)
        found = self.find(model=engine[0], gpu=engine[1], precision=engine[2], backend=backend)
        fitted = self.pooled if found is None else found[1]
        if fitted is None:
            wanted = " ".join(part for part in (*engine, backend) if part is not None)
            raise UnknownNameError(kind="measured engine", name=wanted, known=map(str, self.engines))
        return Calibrated(instance, fitted.constants)

    def to_document(self) -> dict[str, Any]:
        """Plain values, in the order of the module's docstring."""
        document: dict[str, Any] = {
            "kind": KIND,
            "version": VERSION,
            "sources": list(self.sources),
            "rule": self.rule,
        }
        if self.pooled is not None:
            document["pooled"] = _plain(self.pooled)
        document["engines"] = [
            {
                "model": key.model,
                "gpu": key.gpu,
                "backend": key.backend,
                "precision": key.precision.value,
                **_plain(fitted),
            }
            for key, fitted in self.engines.items()
        ]
        return document


def read_calibration(document: object, *, what: str = "calibration") -> Calibration:
    """The calibration that plain values describe. Raises CatalogueError that names the field."""
    entry = Entry(what, document)
    kind, version = entry.text("kind", ""), entry.take("version")
    if kind != KIND or version != VERSION:
        raise CatalogueError(f"{what} has kind {kind!r} and version {version!r}; {KIND!r} and {VERSION} are read here")
    sources, rule = entry.names("sources"), entry.text("rule", "")
    pooled = entry.take("pooled")
    raw = entry.take("engines")
    entry.done()
    if not isinstance(raw, list):
        raise CatalogueError(f"{what}.engines is {raw!r}; it must be a list of engines")
    engines: dict[EngineKey, Fitted] = {}
    for number, plain in enumerate(raw):
        inner = Entry(f"{what}.engines[{number}]", plain)
        precision = inner.text("precision", "")
        if precision not in list(Precision):
            raise CatalogueError(f"{inner.where}.precision is {precision!r}; it must be {', '.join(Precision)}")
        key = EngineKey(
            model=normalise(inner.text("model", "")),
            gpu=normalise(inner.text("gpu", "")),
            backend=inner.text("backend", ""),
            precision=Precision(precision),
        )
        if key in engines:
            raise CatalogueError(f"{inner.where} is a second entry of {key}")
        engines[key] = _fitted(inner)
    return Calibration(
        engines=engines,
        pooled=None if pooled is None else _fitted(Entry(f"{what}.pooled", pooled)),
        sources=sources,
        rule=rule,
    )


def rounded(value: float) -> float:
    """A number as documents write it: six significant digits."""
    return float(f"{value:.6g}")


def _plain(fitted: Fitted) -> dict[str, Any]:
    constants = {entry.name: rounded(getattr(fitted.constants, entry.name)) for entry in fields(CalibratedConstants)}
    fit = fitted.fit
    return {
        "constants": constants,
        "fit": {
            "rows": fit.rows,
            "mape": rounded(fit.mape),
            **{name: list(getattr(fit, name)) for name in _RANGES},
        },
    }


_RANGES = ("concurrency", "input_tokens", "output_tokens", "tensor")


def _fitted(entry: Entry) -> Fitted:
    constants = Entry(f"{entry.where}.constants", entry.take("constants"))
    fit = Entry(f"{entry.where}.fit", entry.take("fit"))
    entry.done()
    values = {field.name: constants.number(field.name, positive=False) for field in fields(CalibratedConstants)}
    constants.done()
    try:
        checked = CalibratedConstants(**values)
    except SettingError as error:
        raise CatalogueError(f"{constants.where}.{error}") from None
    found = Fit(
        rows=fit.whole("rows"),
        mape=fit.number("mape", positive=False),
        **{name: _range(fit, name) for name in _RANGES},
    )
    fit.done()
    return Fitted(constants=checked, fit=found)


def _range(entry: Entry, name: str) -> tuple[int, int]:
    value = entry.take(name)
    if not isinstance(value, Sequence) or len(value) != 2 or not all(type(end) is int and end > 0 for end in value):
        raise CatalogueError(f"{entry.where}.{name} is {value!r}; it must be two whole numbers above 0")
    low, high = value
    if low > high:
        raise CatalogueError(f"{entry.where}.{name} is {value!r}; its first number must not exceed the second")
    return low, high
