"""A worker's side of health and draining, asked over HTTP; the same for pods and for child processes.

Silence is never taken for an answer: a worker that cannot be reached is neither ready nor empty. ``tokens`` are the
deployment's, where it has any; health is asked without.
"""

import json
from dataclasses import dataclass

import aiohttp

from disagg_contract import ports
from disagg_contract.tokens import AUTHORIZATION, Tokens

TIMEOUT = aiohttp.ClientTimeout(total=2.0)


@dataclass(frozen=True, slots=True)
class DrainState:
    """What a worker says of its drain. ``empty``: nothing runs, waits, or is left to be pulled."""

    draining: bool
    empty: bool
    inflight: int | None = None


async def is_healthy(session: aiohttp.ClientSession, base: str) -> bool:
    """Whether ``GET /health`` says 200."""
    try:
        async with session.get(base + ports.HEALTH_PATH, timeout=TIMEOUT) as answer:
            return answer.status == 200
    except (aiohttp.ClientError, TimeoutError, OSError):
        return False


async def start_drain(session: aiohttp.ClientSession, base: str, *, tokens: Tokens | None = None) -> bool:
    """Ask the worker to take nothing new. False when it could not be told."""
    return await _told(session, "POST", base, tokens)


async def cancel_drain(session: aiohttp.ClientSession, base: str, *, tokens: Tokens | None = None) -> bool:
    """Take that back."""
    return await _told(session, "DELETE", base, tokens)


async def drain_state(session: aiohttp.ClientSession, base: str, *, tokens: Tokens | None = None) -> DrainState | None:
    """What the worker says; None when it says nothing that can be understood."""
    try:
        async with session.get(base + ports.DRAIN_PATH, headers=_shows(tokens), timeout=TIMEOUT) as answer:
            if answer.status != 200:
                return None
            document = json.loads(await answer.read())
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError):
        return None
    if not isinstance(document, dict):
        return None
    inflight = document.get("inflight")
    return DrainState(
        draining=document.get("draining") is True,
        empty=document.get("empty") is True,
        inflight=inflight if isinstance(inflight, int) else None,
    )


def _shows(tokens: Tokens | None) -> dict[str, str]:
    return {} if tokens is None else {AUTHORIZATION: tokens.bearer}


async def _told(session: aiohttp.ClientSession, method: str, base: str, tokens: Tokens | None) -> bool:
    url = base + ports.DRAIN_PATH
    try:
        async with session.request(method, url, headers=_shows(tokens), timeout=TIMEOUT) as answer:
            return answer.status < 300
    except (aiohttp.ClientError, TimeoutError, OSError):
        return False
