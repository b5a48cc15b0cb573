"""The control loop: read the fleet and a window, decide, write, say why.

One tick an interval, one writer. The models are fitted in a thread, so that health and metrics answer meanwhile. A
write with a stale version reads the fleet again and decides again from the same window; a refused one is deferred and
comes back with the next decision, because targets are computed from the load and not from what was written before. An
increase that waits for the GPUs of a decrease is polled for between ticks.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass

from disagg_contract.labels import Role
from disagg_planner.core.decision import Decision, decide
from disagg_planner.core.forecast import Predictor
from disagg_planner.core.interpolation import ProfileTable
from disagg_planner.core.observation import Observation, observe
from disagg_planner.core.series import HISTORY
from disagg_planner.core.settings import SCALED, Settings
from disagg_planner.core.state import State, assess, look
from disagg_planner.core.writes import plan_writes
from disagg_planner.errors import ScaleConflict, ScaleRefused, ScalerError
from disagg_planner.shell.clock import Clock
from disagg_planner.shell.exporter import Exporter
from disagg_planner.shell.narrator import Narrator
from disagg_planner.shell.scaling import Runtime, ScaleState, fleet_of
from disagg_planner.shell.sources import MetricsSource

log = logging.getLogger(__name__)

ATTEMPTS = 3
POLL_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class _Outcome:
    """What came of a decision: one of the contract's results, and why it was not written."""

    result: str
    refusal: str = ""


class Planner:
    """The loop. `runtime` is scaler and reporter."""

    def __init__(
        self,
        *,
        settings: Settings,
        table: ProfileTable,
        predictor: Predictor,
        source: MetricsSource,
        runtime: Runtime,
        exporter: Exporter,
        clock: Clock,
        advisory: bool = False,
    ) -> None:
        self._settings = settings
        self._table = table
        self._predictor = predictor
        self._source = source
        self._runtime = runtime
        self._exporter = exporter
        self._clock = clock
        self._advisory = advisory
        self._narrator = Narrator(runtime, settings, advisory=advisory)
        self._state = State()
        self._waiting: Decision | None = None
        self._last_tick = clock.now()

    @property
    def state(self) -> State:
        return self._state

    def healthy(self) -> bool:
        """Whether the last tick ended within three intervals, and half a minute of grace."""
        return self._clock.now() - self._last_tick <= 3 * self._settings.interval_seconds + 30

    async def run(self) -> None:
        """Tick for ever; ends by cancellation."""
        await self._recall()
        due = self._clock.now()
        while True:
            due = max(due + self._settings.interval_seconds, self._clock.now())
            await self._wait_until(due)
            await self.tick()

    async def tick(self) -> Decision | None:
        """One decision; None when the fleet could not be read."""
        now = self._clock.now()
        self._waiting = None
        try:
            states = await self._read()
        except ScalerError as error:
            log.error("no decision: %s", error)
            self._exporter.count("failed")
            self._last_tick = self._clock.now()
            return None
        observation = await self._observe(now)
        fleet = fleet_of(states)
        state = look(self._state, fleet, self._settings, now=now)
        assessment, state = await asyncio.to_thread(
            assess,
            state,
            observation,
            predictor=self._predictor,
            table=self._table,
            fleet=fleet,
            settings=self._settings,
        )
        for attempt in range(1, ATTEMPTS + 1):
            decision, self._state = decide(
                state, assessment, fleet, table=self._table, settings=self._settings, now=now
            )
            try:
                outcome = await self._act(decision, states)
                break
            except ScaleConflict as error:
                log.info("%s; reading again", error)
                outcome = _Outcome("deferred", f"{error}, {attempt} times in a row")
            try:
                states = await self._read()
            except ScalerError as error:
                outcome = _Outcome("failed", str(error))
                break
            fleet = fleet_of(states)
            state = look(state, fleet, self._settings, now=now)
        self._exporter.show_fleet(fleet)
        self._exporter.show(decision)
        self._exporter.count(outcome.result)
        await self._narrator.tell(decision, refusal=outcome.refusal)
        self._last_tick = self._clock.now()
        return decision

    async def _act(self, decision: Decision, states: dict[Role, ScaleState]) -> _Outcome:
        if not decision.changes:
            return _Outcome("held" if decision.problem is not None else "kept")
        if self._advisory:
            return _Outcome("advised")
        writes = plan_writes(decision.targets, fleet_of(states), self._settings)
        for role, replicas in writes.now:
            try:
                await self._runtime.write(role, replicas, states[role].resource_version)
            except ScaleConflict:
                raise
            except ScaleRefused as error:
                return _Outcome("deferred", str(error))
            except ScalerError as error:
                return _Outcome("failed", str(error))
            await self._narrator.scaled(decision, role)
        if writes.waiting:
            self._waiting = decision
        return _Outcome("applied" if writes.now else "deferred")

    async def _wait_until(self, due: float) -> None:
        """Let time pass; meanwhile write increases for which room has been made."""
        while self._waiting is not None and self._clock.now() + POLL_SECONDS < due:
            await self._clock.sleep(POLL_SECONDS)
            await self._write_waiting(self._waiting)
        await self._clock.sleep(due - self._clock.now())

    async def _write_waiting(self, decision: Decision) -> None:
        try:
            states = await self._read()
            writes = plan_writes(decision.targets, fleet_of(states), self._settings)
            # Somebody moved a group meanwhile: the next decision will see it, this one is void.
            if any(replicas < states[role].group.replicas for role, replicas in writes.now) or not writes.waiting:
                self._waiting = None
            for role, replicas in writes.now:
                if replicas > states[role].group.replicas:
                    await self._runtime.write(role, replicas, states[role].resource_version)
                    await self._narrator.scaled(decision, role)
        except ScalerError as error:
            log.info("an increase still waits: %s", error)

    async def _read(self) -> dict[Role, ScaleState]:
        states = await asyncio.gather(*(self._runtime.read(role) for role in SCALED))
        return dict(zip(SCALED, states, strict=True))

    async def _observe(self, now: float) -> Observation:
        settings = self._settings
        return observe(
            await self._source.read(now),
            time_scale=settings.time_scale,
            slo_ttft_seconds=settings.slo_ttft_seconds,
            slo_tpot_seconds=settings.slo_tpot_seconds,
            attainment=settings.attainment,
            stale_seconds=settings.stale_seconds,
        )

    async def _recall(self) -> None:
        """Take the past from the source, so that a restart does not forget the load."""
        now = self._clock.now()
        await self._source.start(now)
        rates, inputs, outputs = self._state.rates, self._state.inputs, self._state.outputs
        for past in await self._source.history(now, HISTORY):
            rates = rates.add(past.at_seconds, past.rate)
            inputs = inputs.add(past.at_seconds, past.input_tokens)
            outputs = outputs.add(past.at_seconds, past.output_tokens)
        self._state = State(rates=rates, inputs=inputs, outputs=outputs)
