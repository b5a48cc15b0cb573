"""The report: every time model against every measurement, as plain values that a table or a program can read.

A time model is a function from an instance (and the engine it was measured as) to a `TimeModel`; one that has nothing
to say about an engine raises an EngineError, and the rows it refused are counted with the first reason.

TPOT is that of the closed form (`steady`), over all rows, and apart for rows that a fit has seen and rows that were
held out. TTFT needs the loop itself: `loops.closed_loop` runs every row, or every k-th, and gives TPOT a second time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from disagg_engine.catalogue import Catalogue
from disagg_engine.errors import EngineError
from disagg_engine.instance import Instance
from disagg_engine.timemodel import BatchShape, Chunk, TimeModel
from disagg_engine.timemodel.calibration import Calibration, EngineKey, rounded

from .deviation import Errors, by, errors_of
from .fitting import group_of, held_out, leave_one_out
from .loops import REQUESTS_A_SLOT, closed_loop
from .silicon import Measurement, Silicon, SplitMeasurement
from .steady import instance_of, load_of, peak_share, steady_tpot_seconds

Builder = Callable[[Instance, EngineKey], TimeModel]
BANDS = (8, 32, 128)
IMPLAUSIBLE = 0.8
"""Share of the peak FLOP/s that large matrix products hardly reach, let alone a whole engine."""


def band(concurrency: int) -> str:
    """The band of concurrency a row is counted in."""
    place = _place(concurrency)
    low = BANDS[place - 1] + 1 if place else 1
    return f"{low}-{BANDS[place]}" if place < len(BANDS) else f"over {BANDS[-1]}"


def _place(concurrency: int) -> int:
    return next((place for place, high in enumerate(BANDS) if concurrency <= high), len(BANDS))


@dataclass(frozen=True, slots=True, kw_only=True)
class Slices:
    """Errors of the same rows, together and apart."""

    everything: Errors
    by_engine: Mapping[str, Errors]
    by_concurrency: Mapping[str, Errors]
    by_tensor: Mapping[str, Errors]

    @classmethod
    def of(cls, rows: Sequence[Measurement], modelled: Sequence[float], measured: Sequence[float]) -> Slices | None:
        """Slices of figures of as many rows; None without any."""
        everything = errors_of(modelled, measured)
        if everything is None:
            return None

        def apart(key: Callable[[Measurement], Any]) -> dict[str, Errors]:
            found = by([key(row) for row in rows], modelled, measured)
            return {_title(name): found[name] for name in sorted(found)}

        return cls(
            everything=everything,
            by_engine=apart(lambda row: str(row.engine)),
            by_concurrency=apart(lambda row: (_place(row.concurrency), band(row.concurrency))),
            by_tensor=apart(lambda row: row.tensor),
        )

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "all": self.everything.to_json(),
            **{
                name: {key: errors.to_json() for key, errors in getattr(self, name).items()}
                for name in ("by_engine", "by_concurrency", "by_tensor")
            },
        }


def _title(key: Any) -> str:
    return str(key[-1]) if isinstance(key, tuple) else str(key)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelErrors:
    """One time model against the rows.

    tpot: by the closed form; `trained` and `held_out` split the same rows. loop_*: by the batching loop, over the rows
    that it ran. refused: rows whose engine the model cannot price, and the first reason.
    """

    name: str
    refused: int
    reason: str
    tpot: Slices | None
    tpot_trained: Slices | None
    tpot_held_out: Slices | None
    loop_ttft: Slices | None
    loop_tpot: Slices | None
    loop_against_closed_form: Errors | None

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        slices = {
            name: None if found is None else found.to_json()
            for name, found in (
                ("tpot", self.tpot),
                ("tpot_trained", self.tpot_trained),
                ("tpot_held_out", self.tpot_held_out),
                ("loop_ttft", self.loop_ttft),
                ("loop_tpot", self.loop_tpot),
            )
        }
        against = self.loop_against_closed_form
        return {
            "refused": self.refused,
            "reason": self.reason,
            **slices,
            "loop_against_closed_form": None if against is None else against.to_json(),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupsHeldOut:
    """TPOT of whole (model, GPU, backend) groups by constants pooled over all the others."""

    everything: Errors
    by_group: Mapping[str, Errors]

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "all": self.everything.to_json(),
            "by_group": {name: errors.to_json() for name, errors in self.by_group.items()},
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class SiliconReport:
    """All of it.

    peak_shares: of the engines whose rows need more of the peak than IMPLAUSIBLE, the largest share that one needs.
    split: the rows of prefill and decode instances, one by one, by the calibrated model.
    """

    source: str
    rows: int
    held_out: int
    left_out: Mapping[str, int]
    models: Sequence[ModelErrors]
    groups_held_out: GroupsHeldOut | None
    peak_shares: Mapping[str, float]
    split: Sequence[Mapping[str, Any]]

    def to_json(self) -> dict[str, Any]:
        """Plain values, with the assumptions that a reader needs."""
        return {
            "source": self.source,
            "rows": self.rows,
            "held_out": self.held_out,
            "left_out": dict(self.left_out),
            "requests_a_slot": REQUESTS_A_SLOT,
            "models": {model.name: model.to_json() for model in self.models},
            "groups_held_out": None if self.groups_held_out is None else self.groups_held_out.to_json(),
            "peak_shares": {name: rounded(share) for name, share in self.peak_shares.items()},
            "split": [dict(row) for row in self.split],
        }


def silicon_report(
    silicon: Silicon,
    *,
    calibration: Calibration,
    builders: Mapping[str, Builder],
    catalogue: Catalogue,
    loop_every: int = 1,
) -> SiliconReport:
    """The report on measured rows. `builders` are the models besides the calibrated one, by name.

    loop_every: run the batching loop on every k-th row (0: on none).
    """
    kept = held_out(silicon.rows)

    def calibrated(instance: Instance, engine: EngineKey) -> TimeModel:
        return calibration.time_model(instance, backend=engine.backend)

    models = [
        _model_errors(name, builder, silicon.rows, kept, catalogue=catalogue, loop_every=loop_every)
        for name, builder in {**builders, "calibrated": calibrated}.items()
    ]
    return SiliconReport(
        source=silicon.source,
        rows=len(silicon.rows),
        held_out=sum(kept),
        left_out=silicon.left_out,
        models=models,
        groups_held_out=_groups_held_out(silicon.rows, catalogue),
        peak_shares=_peak_shares(silicon.rows, catalogue),
        split=[_split_row(row, calibrated, catalogue) for row in silicon.split],
    )


def _model_errors(
    name: str,
    builder: Builder,
    rows: Sequence[Measurement],
    kept: Sequence[bool],
    *,
    catalogue: Catalogue,
    loop_every: int,
) -> ModelErrors:
    reason, places, steady = "", [], []
    ran, loop_ttft, loop_tpot = [], [], []
    build = _remembered(builder)
    for place, row in enumerate(rows):
        load = load_of(row, catalogue)
        try:
            model = build(load.instance, row.engine)
            steady.append(steady_tpot_seconds(model, load))
        except EngineError as error:
            reason = reason or str(error)
            continue
        places.append(place)
        times = None
        if loop_every and place % loop_every == 0:
            times = closed_loop(model, load, backend=row.engine.backend, concurrency=row.concurrency)
        if times is not None:
            ran.append(len(places) - 1)
            loop_ttft.append(sum(times.ttft) / len(times.ttft))
            loop_tpot.append(sum(times.tpot) / len(times.tpot))
    priced = [rows[place] for place in places]

    def slices(wanted: Callable[[int], bool]) -> Slices | None:
        chosen = [index for index, place in enumerate(places) if wanted(place)]
        own = [priced[index] for index in chosen]
        return Slices.of(own, [steady[index] for index in chosen], [row.tpot_seconds for row in own])

    own = [priced[index] for index in ran]
    return ModelErrors(
        name=name,
        refused=len(rows) - len(places),
        reason=reason,
        tpot=slices(lambda place: True),
        tpot_trained=slices(lambda place: not kept[place]),
        tpot_held_out=slices(lambda place: kept[place]),
        loop_ttft=Slices.of(own, loop_ttft, [row.ttft_seconds for row in own]),
        loop_tpot=Slices.of(own, loop_tpot, [row.tpot_seconds for row in own]),
        loop_against_closed_form=errors_of(loop_tpot, [steady[index] for index in ran]),
    )


def _remembered(builder: Builder) -> Builder:
    """The same, building each model once; some read large tables for it."""
    built: dict[tuple[EngineKey, int], TimeModel | EngineError] = {}

    def build(instance: Instance, engine: EngineKey) -> TimeModel:
        key = (engine, instance.tensor)
        if key not in built:
            try:
                built[key] = builder(instance, engine)
            except EngineError as error:
                built[key] = error
        found = built[key]
        if isinstance(found, EngineError):
            raise found
        return found

    return build


def _groups_held_out(rows: Sequence[Measurement], catalogue: Catalogue) -> GroupsHeldOut | None:
    names, modelled, measured = [], [], []
    for group, figures in leave_one_out(rows, catalogue).items():
        own = [row for row in rows if group_of(row) == group]
        names += [" ".join(group)] * len(own)
        modelled += figures
        measured += [row.tpot_seconds for row in own]
    everything = errors_of(modelled, measured)
    if everything is None:
        return None
    return GroupsHeldOut(everything=everything, by_group=by(names, modelled, measured))


def _peak_shares(rows: Sequence[Measurement], catalogue: Catalogue) -> dict[str, float]:
    found: dict[str, float] = {}
    for row in rows:
        share = peak_share(row, catalogue)
        if share > IMPLAUSIBLE:
            found[str(row.engine)] = max(share, found.get(str(row.engine), 0.0))
    return found


def _split_row(row: SplitMeasurement, builder: Builder, catalogue: Catalogue) -> dict[str, Any]:
    """An idle prompt's prefill and a full decode batch: no queue, no transfer; None where the model is silent."""
    context = row.decode_batch * (row.input_tokens + row.output_tokens // 2)
    prompts = BatchShape(chunks=(Chunk(0, row.input_tokens),) * row.prefill_batch)
    decodes = BatchShape(decode_sequences=row.decode_batch, decode_context_tokens=context)

    def modelled(tensor: int, batch: BatchShape) -> float | None:
        instance = instance_of(row.engine, tensor=tensor, catalogue=catalogue)
        try:
            return rounded(builder(instance, row.engine).iteration_seconds(batch).seconds)
        except EngineError:
            return None

    return {
        "engine": str(row.engine),
        "layout": f"{row.prefill_instances}P tp{row.prefill_tensor} {row.decode_instances}D tp{row.decode_tensor}",
        "input_tokens": row.input_tokens,
        "output_tokens": row.output_tokens,
        "decode_batch": row.decode_batch,
        "ttft_seconds": {"measured": rounded(row.ttft_seconds), "modelled": modelled(row.prefill_tensor, prompts)},
        "tpot_seconds": {"measured": rounded(row.tpot_seconds), "modelled": modelled(row.decode_tensor, decodes)},
    }
