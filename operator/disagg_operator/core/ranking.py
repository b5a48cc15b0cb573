"""Who goes first when instances of a role are too many."""

from disagg_operator.core.fleet import Instance


def removal_rank(instance: Instance, revision: str) -> tuple[bool, bool, bool, bool, int, float, str]:
    """Sort key of who goes first: unassigned, pending, not ready, old revision, most fragmenting, newest.

    Terminating instances come before all of these: they count as gone already, and are no candidates.
    """
    return (
        instance.placed,
        instance.scheduled,
        instance.ready,
        instance.revision == revision,
        -instance.fragments,
        -instance.created_at,
        instance.name,
    )
