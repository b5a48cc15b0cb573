"""The programs as command lines for the process runtime, where all share the loopback address."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from disagg_contract.settings import Config, to_args
from disagg_crds import DisaggDeployment, Role
from disagg_operator.render.configs import Surroundings, planner_config, router_config, worker_config

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Addresses and files that the runtime chose. ``program`` starts the command line of ``disagg``.

    ``token_file`` holds the deployment's tokens; without one every program is open.
    """

    program: Sequence[str]
    discovery_file: str
    control_url: str
    router_url: str
    token_file: str = ""


def worker_command(
    deployment: DisaggDeployment, role: Role, *, port: int, kv_port: int, places: Places, around: Surroundings
) -> list[str]:
    """Command line of an instance that serves HTTP on ``port`` and KV pulls on ``kv_port``."""
    config = worker_config(deployment, role, around=around)
    return _command(
        replace(
            config,
            host=LOOPBACK,
            port=port,
            kv_host=LOOPBACK,
            kv_port=kv_port,
            token_file=places.token_file,
        ),
        program=places.program,
    )


def router_command(
    deployment: DisaggDeployment, *, port: int, grace_seconds: float, places: Places, around: Surroundings
) -> list[str]:
    """Command line of the router, which learns of workers from the discovery file.

    ``grace_seconds`` is what a stop leaves it, instead of a pod's grace period.
    """
    config = replace(
        router_config(deployment, around=around),
        host=LOOPBACK,
        port=port,
        discovery_file=places.discovery_file,
        token_file=places.token_file,
        grace_seconds=grace_seconds,
    )
    return _command(config, program=places.program)


def planner_command(deployment: DisaggDeployment, *, port: int, places: Places, around: Surroundings) -> list[str]:
    """Command line of the planner, which scales through the control API.

    Without a Prometheus in the spec it scrapes router and workers itself.
    """
    config = replace(
        planner_config(deployment, around=around),
        host=LOOPBACK,
        port=port,
        control_url=places.control_url,
        router_url=places.router_url,
        discovery_file=places.discovery_file,
    )
    return _command(config, program=places.program)


def _command(config: Config, *, program: Sequence[str]) -> list[str]:
    return [*program, config.program, *to_args(config)]
