"""When a deployment gets another token, and in which steps.

The members of a deployment learn of a changed Secret one after the other, within a minute or two, so a token is never
swapped in one go: first every member learns to accept the new one (``learning``: the old one is still shown), then all
begin to show it (``showing``: the old one is still accepted), then the old one is forgotten (``steady``). Between two
steps everybody gets ``step_seconds``. A rotation that is asked for while another one is under way follows it.
"""

from dataclasses import dataclass, field
from enum import StrEnum


class Stage(StrEnum):
    """Where a rotation stands."""

    STEADY = "steady"
    LEARNING = "learning"
    SHOWING = "showing"


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenState:
    """``values``: the first one is shown, each is accepted. ``since``: seconds since the epoch of the last step.

    ``asked``: the request that was last answered, as it stood in the deployment's annotation.
    """

    values: tuple[str, ...] = field(repr=False)
    stage: Stage = Stage.STEADY
    since: float = 0.0
    asked: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRules:
    """``step_seconds``: between two steps; ``max_age_seconds``: at which a token is replaced, 0: never by age."""

    step_seconds: float
    max_age_seconds: float = 0.0


def advance(state: TokenState | None, *, asked: str, now: float, fresh: str, rules: TokenRules) -> TokenState:
    """The state that should be now; ``fresh`` is a token that nobody has seen, used where a new one is needed."""
    if state is None:
        return TokenState(values=(fresh,), since=now, asked=asked)
    if state.stage is not Stage.STEADY:
        if now - state.since < rules.step_seconds:
            return state
        if state.stage is Stage.LEARNING:
            old, new = state.values[0], state.values[-1]
            return TokenState(values=(new, old), stage=Stage.SHOWING, since=now, asked=state.asked)
        return TokenState(values=state.values[:1], since=now, asked=state.asked)
    wanted = bool(asked) and asked != state.asked
    aged = rules.max_age_seconds > 0 and now - state.since >= rules.max_age_seconds
    if not wanted and not aged:
        return state
    return TokenState(
        values=(state.values[0], fresh), stage=Stage.LEARNING, since=now, asked=asked if wanted else state.asked
    )


def due_seconds(state: TokenState, *, asked: str, now: float, rules: TokenRules) -> float | None:
    """Seconds until the next step; None while no rotation is under way or asked for."""
    if state.stage is not Stage.STEADY:
        return max(0.0, state.since + rules.step_seconds - now)
    return 0.0 if asked and asked != state.asked else None
