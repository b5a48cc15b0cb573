"""Errors of the planner.

    PlannerError
    ├── SettingsError        settings or profile that no decision can be made with; the program exits 2
    └── ScalerError          the fleet could not be read or written
        ├── ScaleConflict    somebody wrote in between: read again, decide again
        └── ScaleRefused     the other side understood and said no for now: the decision is deferred

A metrics source raises nothing: whatever goes wrong there becomes a `Problem` inside the observation, because the
planner has to go on enforcing bounds without metrics.
"""


class PlannerError(Exception):
    """Base of the tree."""


class SettingsError(PlannerError):
    """A setting is wrong. The message names the flag, the value and what would be right."""


class ScalerError(PlannerError):
    """The replicas of a group could not be read or written."""


class ScaleConflict(ScalerError):
    """The resource version was stale."""


class ScaleRefused(ScalerError):
    """The write was refused; it may be accepted later."""
