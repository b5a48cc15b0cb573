"""What one instance did when: what it computed, who waited, how full its KV was."""

from __future__ import annotations

from typing import Any

import numpy as np

from disagg_cli.errors import UsageError
from disagg_cli.plots.canvas import BLUE, GREEN, ORANGE, RED, canvas, headline
from disagg_simulator.recording import InstanceRecord, Recording

WINDOW_SECONDS = 4.0
"""What is shown where nobody says: time enough to see single iterations."""


def instance_named(recording: Recording, name: str | None) -> InstanceRecord:
    """The instance of that name, or the first one. Raises `UsageError`."""
    names = [instance.name for instance in recording.instances]
    if name is None:
        return recording.instances[0]
    if name not in names:
        raise UsageError(f"--timeline-instance: no instance is called {name!r}; there are {', '.join(names)}")
    return recording.instances[names.index(name)]


def busiest(instance: InstanceRecord) -> tuple[float, float]:
    """A window in which requests wait: around the highest queue of the run."""
    times = np.frombuffer(instance.series_seconds, dtype=np.float64)
    if not times.size:
        return 0.0, WINDOW_SECONDS
    waiting = np.frombuffer(instance.series_waiting, dtype=np.int32)
    start = max(0.0, float(times[int(np.argmax(waiting))]) - WINDOW_SECONDS / 2)
    return start, start + WINDOW_SECONDS


def draw_timeline(
    recording: Recording, instance: InstanceRecord, *, window: tuple[float, float], caption: str, path: str
) -> None:
    """Draw one instance from `window[0]` to `window[1]` seconds."""
    with canvas(path, nrows=3, sharex=True, height_ratios=(2, 2, 1.5)) as (figure, (slices, queue, kv)):
        gpus = "1 GPU" if instance.gpus == 1 else f"{instance.gpus} GPUs"
        headline(figure, f"Timeline of {instance.name} ({gpus})", caption)
        _draw_slices(slices, instance, window)
        times = np.frombuffer(instance.series_seconds, dtype=np.float64)
        shown = _shown(times, window)
        style: dict[str, Any] = {"where": "post", "linewidth": 2.5}
        for name, column, colour in (
            ("waiting", instance.series_waiting, RED),
            ("running", instance.series_running, BLUE),
        ):
            queue.step(times[shown], np.frombuffer(column, dtype=np.int32)[shown], color=colour, label=name, **style)
        queue.set_ylabel("requests")
        queue.set_ylim(0, 1.45 * max(1.0, queue.get_ylim()[1]))
        queue.legend(loc="upper right", ncols=2)
        tokens = np.frombuffer(instance.series_kv_tokens, dtype=np.int64)[shown]
        share = 100 * tokens / max(1, instance.capacity_tokens)
        kv.fill_between(times[shown], share, step="post", color=GREEN, alpha=0.35, linewidth=0)
        kv.step(times[shown], share, color=GREEN, **style)
        kv.set_ylim(0, 103)
        kv.set_ylabel("KV used (%)")
        kv.set_xlabel("time (s)")
        kv.set_xlim(*window)
        figure.align_ylabels()


def _shown(times: Any, window: tuple[float, float]) -> slice:
    """Entries inside the window, and one on each side."""
    low, high = np.searchsorted(times, window)
    return slice(max(0, int(low) - 1), int(high) + 1)


def _draw_slices(axes: Any, instance: InstanceRecord, window: tuple[float, float]) -> None:
    starts = np.frombuffer(instance.slice_start_seconds, dtype=np.float64)
    ends = np.frombuffer(instance.slice_end_seconds, dtype=np.float64)
    prompts = np.frombuffer(instance.slice_prompt_tokens, dtype=np.int32)
    sequences = np.frombuffer(instance.slice_sequences, dtype=np.int32)
    inside = (ends > window[0]) & (starts < window[1])
    decoding, prefilling = sequences > 0, prompts > 0
    for name, chosen, colour, lane in (
        ("prefill", inside & prefilling & ~decoding, ORANGE, 2),
        ("both in one iteration", inside & prefilling & decoding, GREEN, 1),
        ("decode", inside & decoding & ~prefilling, BLUE, 0),
    ):
        bars = [(start, end - start) for start, end in zip(starts[chosen], ends[chosen], strict=True)]
        axes.broken_barh(bars, (lane + 0.1, 0.8), facecolor=colour, edgecolor="white", linewidth=0.6, label=name)
    axes.set_yticks((0.5, 1.5, 2.5), ("decode", "mixed", "prefill"))
    axes.set_ylim(0, 3)
    axes.set_ylabel("iterations")
    axes.grid(visible=False, axis="y")
