"""Who goes first when instances of a role are too many."""

from disagg_operator.core.fleet import Instance


def removal_rank(instance: Instance, revision: str) -> tuple[bool, bool, bool, bool, float, str]:
    """Sort key of who goes first: unassigned, pending, not ready, old revision, newest."""
    return (
        instance.placed,
        instance.scheduled,
        instance.ready,
        instance.revision == revision,
        -instance.created_at,
        instance.name,
    )
