"""Deployments and loads of the reference rows (DistServe's settings: A100-80GB, FP16, NVLink 300 GB/s)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from disagg_contract.labels import Role
from disagg_engine.batching import BatchingConfig
from disagg_engine.catalogue import default
from disagg_engine.instance import Instance
from disagg_engine.timemodel import Roofline
from disagg_load.columns import Columns
from disagg_load.report import Slo
from disagg_load.workloads.arrivals import PoissonArrivals
from disagg_load.workloads.drawing import draw
from disagg_load.workloads.lengths import FixedLengths, Lengths, LognormalLengths
from disagg_simulator.deployment import Deployment, Group, Link, Mode
from disagg_simulator.goodput import Goodput, Search, find_goodput
from disagg_simulator.recording import Recording
from disagg_simulator.report import Result, build_result
from disagg_simulator.simulate import simulate
from disagg_simulator.trials import Trials


@dataclass(frozen=True, kw_only=True)
class Application:
    """A load of the reference: mean lengths, their shape (None: fixed), and what is promised."""

    input_tokens: int
    output_tokens: int
    slo: Slo
    sigma: float | None = None

    def requests(self, count: int, *, seed: int = 0) -> Columns:
        """Poisson arrivals, one a second in the mean."""

        def lengths(mean: int) -> Lengths:
            return FixedLengths(mean) if self.sigma is None else LognormalLengths(mean, self.sigma)

        inputs, outputs = lengths(self.input_tokens), lengths(self.output_tokens)
        return draw(PoissonArrivals(1.0), inputs, outputs, seed=seed, requests=count)

    def at_rate(self, rate: float, count: int) -> Columns:
        """The same requests at another rate."""
        return self.requests(count).at_rate(rate)


@dataclass(frozen=True)
class Lab:
    """Builds deployments of the reference and asks them."""

    def group(
        self,
        role: Role,
        replicas: int = 1,
        *,
        model: str = "opt-13b",
        tensor: int = 1,
        pipeline: int = 1,
        **batching: object,
    ) -> Group:
        catalogue = default()
        instance = Instance(
            model=catalogue.model(model), gpu=catalogue.gpu("a100-80gb"), tensor=tensor, pipeline=pipeline
        )
        config = BatchingConfig(role=role, pipeline=pipeline, **batching)  # type: ignore[arg-type]
        return Group(instance=instance, time_model=Roofline(instance), batching=config, replicas=replicas)

    def colocated(self, replicas: int = 1, **how: object) -> Deployment:
        return Deployment(mode=Mode.COLOCATED, workers=(self.group(Role.WORKER, replicas, **how),))  # type: ignore[arg-type]

    def prefill_only(self) -> Deployment:
        return Deployment(mode=Mode.PREFILL_ONLY, prefill=(self.group(Role.PREFILL),))

    def decode_only(self, replicas: int = 1, **how: object) -> Deployment:
        return Deployment(mode=Mode.DECODE_ONLY, decode=(self.group(Role.DECODE, replicas, **how),))  # type: ignore[arg-type]

    def pair(self, prefill: int, decode: int) -> Deployment:
        return Deployment(
            mode=Mode.DISAGGREGATED,
            prefill=(self.group(Role.PREFILL, prefill),),
            decode=(self.group(Role.DECODE, decode),),
            link=Link(bytes_per_second=300e9),
        )

    def goodput(
        self,
        deployment: Deployment,
        load: Application,
        *,
        requests: int = 3000,
        tolerance: float = 0.005,
        growth: int = 1,
    ) -> Goodput:
        trials = Trials(deployment, load.at_rate, load.slo, seed=0)
        return find_goodput(trials, Search(requests=requests, tolerance=tolerance, growth=growth))

    def run(self, deployment: Deployment, load: Application, *, rate: float, requests: int = 3000) -> Recording:
        return simulate(deployment, load.requests(requests).at_rate(rate), seed=0)

    def result(self, deployment: Deployment, load: Application, *, rate: float, requests: int = 3000) -> Result:
        return build_result(self.run(deployment, load, rate=rate, requests=requests), load.slo)


@pytest.fixture(scope="session")
def lab() -> Lab:
    """Builds deployments of the reference and asks them."""
    return Lab()


@pytest.fixture(scope="session")
def application() -> Callable[..., Application]:
    """`application(input, output, ttft_seconds, tpot_seconds, sigma=None)`."""

    def make(
        input_tokens: int, output_tokens: int, ttft_seconds: float, tpot_seconds: float, sigma: float | None = None
    ) -> Application:
        return Application(
            input_tokens=input_tokens,
            output_tokens=output_tokens,
            slo=Slo(ttft_seconds=ttft_seconds, tpot_seconds=tpot_seconds),
            sigma=sigma,
        )

    return make
