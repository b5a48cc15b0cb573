"""`disagg planner`: put the parts together and run until told to stop.

The profile comes as an argument, because the planner may not import the engine that computes it. Without a metrics
source the planner still runs: it holds, keeps the groups within their bounds and says in a condition which setting is
missing.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from pathlib import Path

from disagg_contract.config import PlannerConfig, PlannerMode
from disagg_contract.config import Predictor as PredictorName
from disagg_contract.listening import ListenError
from disagg_contract.profile import Profile
from disagg_planner.core.forecast import LastValue, Predictor
from disagg_planner.core.interpolation import ProfileTable
from disagg_planner.core.settings import Settings, from_config
from disagg_planner.errors import PlannerError, SettingsError
from disagg_planner.shell import server
from disagg_planner.shell.clock import WallClock
from disagg_planner.shell.control import ControlRuntime
from disagg_planner.shell.exporter import Exporter
from disagg_planner.shell.loop import Planner
from disagg_planner.shell.prometheus import PrometheusSource
from disagg_planner.shell.queries import Target
from disagg_planner.shell.scaling import Runtime
from disagg_planner.shell.scrape import ScrapeSource
from disagg_planner.shell.sources import MetricsSource, NoSource

log = logging.getLogger("disagg_planner")

_NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


def run(config: PlannerConfig, profile: Profile) -> int:
    """Run the planner until SIGTERM or SIGINT. Returns 0; 2 for wrong settings and for a port that cannot be had."""
    logging.basicConfig(
        level=config.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s %(message)s", stream=sys.stderr
    )
    try:
        settings, table = from_config(config), ProfileTable(profile)
        if not config.control_url and not config.deployment:
            raise SettingsError("--deployment is empty; name the DisaggDeployment to scale, or give --control-url")
        return asyncio.run(_serve(config, settings, table))
    except (PlannerError, ListenError) as error:
        print(f"disagg planner: {error}", file=sys.stderr)
        return 2


def build_source(config: PlannerConfig, *, namespace: str) -> MetricsSource:
    """Prometheus where it is named, else direct scraping, else a source that says what is missing."""
    window = config.window_seconds or config.interval_seconds
    model = config.served_model_name or config.model
    timeout = max(min(config.interval_seconds / 2, 10.0), 0.5)
    if config.prometheus_url:
        return PrometheusSource(
            url=config.prometheus_url,
            target=Target(namespace=namespace, deployment=config.deployment, model=model),
            window_seconds=window,
            time_scale=config.time_scale,
            timeout_seconds=timeout,
        )
    if config.router_url:
        return ScrapeSource(
            router_url=config.router_url,
            discovery_file=config.discovery_file,
            model=model,
            window_seconds=window,
            timeout_seconds=timeout,
        )
    return NoSource(
        "no metrics source: set spec.planner.prometheus.url (--prometheus-url), or --router-url and --discovery-file"
    )


def load_predictor(name: PredictorName) -> Predictor:
    """The predictor of that name; it imports statsmodels, which takes seconds, at its first fit."""
    if name is PredictorName.CONSTANT:
        return LastValue()
    # The matrices of a fit are 2 x 2: threads of the linear algebra only wait for each other, and on a busy node a fit
    # takes thirty times as long with them. The library reads this when it is loaded.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from disagg_planner.core.arima import arima_predictor

    return arima_predictor()


async def build_runtime(config: PlannerConfig, *, namespace: str) -> Runtime:
    """The control API where it is named, else Kubernetes."""
    if config.control_url:
        return ControlRuntime(url=config.control_url)
    from disagg_planner.shell.kubernetes import KubernetesRuntime, connect

    return KubernetesRuntime(await connect(), namespace=namespace, deployment=config.deployment)


def own_namespace(config: PlannerConfig) -> str:
    """The namespace of the settings, else the pod's own, else `default`."""
    if config.namespace:
        return config.namespace
    try:
        return _NAMESPACE_FILE.read_text().strip()
    except OSError:
        return "default"


async def _serve(config: PlannerConfig, settings: Settings, table: ProfileTable) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    namespace = own_namespace(config)
    runtime = await build_runtime(config, namespace=namespace)
    source = build_source(config, namespace=namespace)
    exporter = Exporter(settings)
    try:
        predictor = load_predictor(config.predictor)
        planner = Planner(
            settings=settings,
            table=table,
            predictor=predictor,
            source=source,
            runtime=runtime,
            exporter=exporter,
            clock=WallClock(),
            advisory=config.mode is PlannerMode.ADVISORY,
        )
        runner, port = await server.start(
            server.build_app(exporter, planner.healthy), host=config.host, port=config.port
        )
        log.info("planner listens on %s:%s, decides every %g s", config.host, port, settings.interval_seconds)
        try:
            await _until(stop, planner)
        finally:
            await runner.cleanup()
    finally:
        await source.close()
        await runtime.close()
    log.info("planner stopped")
    return 0


async def _until(stop: asyncio.Event, planner: Planner) -> None:
    """Run the loop until `stop`; an error of the loop ends the program with it."""
    running = asyncio.create_task(planner.run(), name="planner")
    stopping = asyncio.create_task(stop.wait(), name="stop")
    try:
        await asyncio.wait({running, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            await running
    finally:
        for task in (running, stopping):
            task.cancel()
        await asyncio.gather(running, stopping, return_exceptions=True)
