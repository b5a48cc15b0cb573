"""Tell a Prometheus what to scrape, through a file.

Some builds of Prometheus (Debian's) cannot ask Kubernetes for pods; all of them watch files. This program runs beside
the chart's Prometheus, looks at the pods of all deployments every few seconds, and writes the ports that serve metrics
to a file of the `file_sd` format, with the labels that queries select by. It writes only news, and atomically. While
the API server does not answer, the last file stays: targets that are gone just fail to be scraped.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol

from disagg_contract import labels, metrics, ports
from disagg_contract.errors import ConfigError
from disagg_contract.settings import Config, log_level_setting, parse, setting
from disagg_operator.errors import ApiError
from disagg_operator.shell.blocking import BlockingApi, Document, until_terminated

log = logging.getLogger(__name__)

SCRAPED_PORTS = frozenset((ports.HTTP_NAME, ports.METRICS_NAME))


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetsConfig(Config):
    """Settings of the target finder."""

    program: ClassVar[str] = "targets"

    file: str = setting("/targets/pods.json", "file to write, which Prometheus watches")
    namespace: str = setting("", "namespace to look at; empty: all")
    interval_seconds: float = setting(5.0, "wall seconds between two looks at the pods", above=0)
    log_level: str = log_level_setting()


def scrape_targets(pods: Iterable[Document]) -> list[dict[str, Any]]:
    """`file_sd` entries of the pods that serve metrics, one a pod, sorted by name."""
    entries = []
    for pod in pods:
        address = pod["status"].get("podIP")
        if not address or pod["status"].get("phase") != "Running":
            continue
        host = f"[{address}]" if ":" in address else address
        numbers = [
            port["containerPort"]
            for container in pod["spec"]["containers"]
            for port in container.get("ports", ())
            if port.get("name") in SCRAPED_PORTS
        ]
        if not numbers:
            continue
        found = pod["metadata"].get("labels", {})
        entries.append(
            {
                "targets": [f"{host}:{number}" for number in numbers],
                "labels": {
                    metrics.SCRAPE_NAMESPACE: pod["metadata"]["namespace"],
                    metrics.SCRAPE_POD: pod["metadata"]["name"],
                    metrics.SCRAPE_DEPLOYMENT: found.get(labels.DEPLOYMENT, ""),
                    metrics.SCRAPE_ROLE: found.get(labels.COMPONENT, ""),
                },
            }
        )
    return sorted(entries, key=lambda e: (e["labels"][metrics.SCRAPE_NAMESPACE], e["labels"][metrics.SCRAPE_POD]))


def write(path: Path, entries: list[dict[str, Any]]) -> bool:
    """Replace the file when its contents change; whether they did. A reader sees the old file or the new one."""
    text = json.dumps(entries, indent=1)
    if path.is_file() and path.read_text(encoding="utf-8") == text:
        return False
    fresh = path.with_suffix(".tmp")
    fresh.write_text(text, encoding="utf-8")
    os.replace(fresh, path)
    return True


class Pods(Protocol):
    """Where the pods come from."""

    def list(self) -> Iterable[Document]:
        """All pods of deployments. Raises ApiError when they cannot be had."""


class KubernetesPods:
    """Pods of one namespace or of all, as the API server remembers them."""

    def __init__(self, namespace: str) -> None:
        self._api = BlockingApi()
        self._namespace = namespace

    def list(self) -> list[Document]:
        # Version 0 is answered from the API server's memory; a second of age does not matter here.
        options = {"label_selector": labels.DEPLOYMENT, "resource_version": "0"}
        if self._namespace:
            return self._api.items(self._api.core.list_namespaced_pod, self._namespace, **options)
        return self._api.items(self._api.core.list_pod_for_all_namespaces, **options)


def keep(pods: Pods, config: TargetsConfig, stopped: threading.Event) -> None:
    """Keep the file up to date until `stopped`."""
    while not stopped.is_set():
        try:
            entries = scrape_targets(pods.list())
            if write(Path(config.file), entries):
                log.info("%d pods to scrape", len(entries))
        except ApiError as error:
            log.warning("the old targets stay: %s", error)
        stopped.wait(config.interval_seconds)


def main(argv: list[str] | None = None) -> int:
    """`python -m disagg_operator.shell.targets`; 2 when the settings are wrong."""
    try:
        config = parse(TargetsConfig, sys.argv[1:] if argv is None else argv, os.environ)
    except ConfigError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    logging.basicConfig(level=config.log_level.upper(), format="%(asctime)s %(levelname)s %(message)s")
    keep(KubernetesPods(config.namespace), config, until_terminated())
    return 0


if __name__ == "__main__":
    sys.exit(main())
