"""Where everything of one cluster is: names, subnets, folders and programs in one value that is passed around."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from embedded import network, processes
from embedded.names import Names, Subnets
from embedded.pki import Pki
from embedded.processes import Process
from embedded.shell import say

_LOOKS = 10
_LOOK_SECONDS = 0.1


@dataclass(frozen=True)
class Cluster:
    """One cluster's names, addresses, folders and the programs it runs."""

    names: Names
    subnets: Subnets
    cache: Path
    program: Callable[[str], Path]

    @property
    def state(self) -> Path:
        """The state folder."""
        return self.names.state

    @property
    def pki(self) -> Pki:
        """Keys, certificates and kubeconfigs."""
        return Pki(self.state / "pki")

    @property
    def kubeconfig(self) -> Path:
        """Kubeconfig of the administrator."""
        return self.state / "kubeconfig"

    @property
    def logs(self) -> Path:
        """One log file for each role; pods' logs are in pods/ below it."""
        return self.state / "logs"

    def log(self, role: str) -> Path:
        """Log file of one role."""
        return self.logs / f"{role}.log"

    def processes(self) -> list[Process]:
        """Every process of this cluster, pods included."""
        return processes.find(self.state, cgroup=self.names.cgroup)

    def ensure_running(
        self,
        role: str,
        argv: list[str],
        *,
        files: tuple[Path, ...] = (),
        wrap: Callable[[list[str]], list[str]] | None = None,
        also_when_changed: str = "",
    ) -> bool:
        """Start `role` unless it runs already with this very command and these files; True when it was started.

        `wrap` puts the command into its namespaces (the cluster's network by default).
        """
        spec = processes.fingerprint(argv, files, extra=also_when_changed)
        running = processes.by_role(self.processes()).get(role)
        if running and running.spec == spec:
            return False
        if running:
            say(f"{role}: its command or settings changed, restarting it")
            self.stop_roles((role,))
        command = wrap(argv) if wrap else network.inside(self.names, *argv)
        processes.spawn(command, state=self.state, role=role, spec=spec, log=self.log(role))
        return True

    def stop_roles(self, roles: tuple[str, ...], *, grace_seconds: float = 10) -> None:
        """End every process that has one of these roles."""
        processes.stop(lambda: [p for p in self.processes() if p.role in roles], grace_seconds=grace_seconds)

    def why_dead(self, role: str) -> str | None:
        """Say why a role does not run, with the end of its log; None when it runs.

        A process that is just replacing its program (`exec`) shows no environment for a moment, so one look that does
        not find it proves nothing.
        """
        for _ in range(_LOOKS):
            if role in processes.by_role(self.processes()):
                return None
            time.sleep(_LOOK_SECONDS)
        path = self.log(role)
        tail = path.read_text(errors="replace").splitlines()[-6:] if path.exists() else []
        return "\n".join([f"{role} has ended; its log {path} says at the end:", *(f"  {line[:300]}" for line in tail)])
