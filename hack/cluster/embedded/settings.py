"""What one cluster was asked to be, kept in its state folder so that a second `up` needs no options.

In: options of the command line (None where not given), the saved settings. Out: the settings that hold now.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

from embedded.errors import SpecError
from embedded.names import Subnets
from embedded.topology import DEFAULT_GPUS, DEFAULT_TOPOLOGY, Node, kwok_nodes, real_nodes

DEFAULT_STATE = "/var/tmp/disagg-cluster"


@dataclass(frozen=True)
class Settings:
    """Shape of a cluster. Every field is an option of `up`."""

    nodes: int = 2
    gpus: str = DEFAULT_GPUS
    topology: str = DEFAULT_TOPOLOGY
    kwok: int = 0
    kwok_gpus: int = 8
    kwok_domain_size: int = 8

    def real_nodes(self) -> list[Node]:
        """Nodes with a kubelet."""
        return real_nodes(count=self.nodes, gpus=self.gpus, topology=self.topology)

    def kwok_nodes(self) -> list[Node]:
        """Nodes without one."""
        return kwok_nodes(count=self.kwok, gpus=self.kwok_gpus, domain_size=self.kwok_domain_size)


@dataclass(frozen=True)
class Record:
    """What a state folder remembers of its cluster (`cluster.json`)."""

    settings: Settings
    subnets: Subnets
    boot_id: str


def merge(saved: Settings, options: dict[str, int | str | None]) -> Settings:
    """Put the options that were given over the saved settings."""
    known = {field.name for field in fields(Settings)}
    return replace(saved, **{name: value for name, value in options.items() if name in known and value is not None})  # type: ignore[arg-type]


def read_record(state: Path) -> Record | None:
    """Read `cluster.json`; None when there is no cluster, SpecError when the file is damaged."""
    path = state / "cluster.json"
    try:
        data = json.loads(path.read_text())
        return Record(Settings(**data["settings"]), Subnets(data["octet"]), data["boot_id"])
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise SpecError(f"{path} is damaged ({error}): run `down` for this state folder, then `up` again") from error


def write_record(state: Path, record: Record) -> None:
    """Write `cluster.json` in one step, so that a crash leaves the old file or the new one."""
    data = {"settings": asdict(record.settings), "octet": record.subnets.octet, "boot_id": record.boot_id}
    partial = state / ".cluster.json.partial"
    partial.write_text(json.dumps(data, indent=2) + "\n")
    partial.replace(state / "cluster.json")


def boot_id() -> str:
    """Name the current run of the machine; it changes at a reboot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def default_state() -> Path:
    """State folder when none is named."""
    return Path(os.environ.get("DISAGG_CLUSTER_STATE") or DEFAULT_STATE)


def default_cache() -> Path:
    """Folder for binaries and images that outlive clusters."""
    if named := os.environ.get("DISAGG_CACHE"):
        return Path(named).absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "disagg"
