"""Faults at given times."""

from __future__ import annotations

from functools import partial
from math import inf

from disagg_simulator.cluster.run import ClusterRun
from disagg_simulator.errors import OptionError
from disagg_simulator.options import Fault, FaultKind


def schedule_faults(run: ClusterRun) -> None:
    """Put the options' faults on the heap. Raises OptionError for an instance that cannot exist."""
    for fault in run.options.faults:
        count = len(run.fleet.of(fault.role))
        if run.options.planner is None and fault.index >= count:
            raise OptionError(
                field="fault.index", value=fault.index, wanted=f"below the number of {fault.role} instances, {count}"
            )
        run.at(fault.at_seconds, partial(_strike, run, fault))


def _strike(run: ClusterRun, fault: Fault) -> None:
    """The fault happens to the instance that has that place among those of its role, if there is one."""
    members = [member for member in run.fleet.members if member.role is fault.role]
    if fault.index >= len(members):
        return
    member = members[fault.index]
    lasts = fault.for_seconds < inf
    if fault.kind is FaultKind.KILL:
        run.lose(member, for_ever=not lasts)
        if lasts:
            run.at(run.now + fault.for_seconds, partial(run.serve, member))
        return
    run.set_slowdown(member, fault.factor)
    if lasts:
        run.at(run.now + fault.for_seconds, partial(run.set_slowdown, member, 1.0))
