"""The fine timer: it rings once when it is due, and not when it was unset."""

import asyncio
import sys

import pytest

from disagg_workers.alarm import Alarm


@pytest.mark.parametrize("platform", [sys.platform, "unheard-of"])
async def test_an_alarm_rings_once_and_forgets_what_was_set_before(
    platform: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the kernel's timer, and with the event loop's where there is none."""
    monkeypatch.setattr(sys, "platform", platform)
    aio = asyncio.get_running_loop()
    rings: list[float] = []
    rung = asyncio.Event()

    def ring() -> None:
        rings.append(aio.time())
        rung.set()

    alarm = Alarm(ring)
    begun = aio.time()
    alarm.set(60.0)
    alarm.set(0.02)
    async with asyncio.timeout(30):
        await rung.wait()
    assert rings[0] - begun >= 0.019, "not before its time"
    alarm.set(0.001)
    alarm.unset()
    await asyncio.sleep(0.02)
    assert len(rings) == 1
    alarm.close()
