"""Claim: gangs placed into the fullest domain that takes them find room more often than first-fit or spread gangs do.

    .venv/bin/python benchmarks/placement_quality.py [--arrivals N] [--seeds N] [--json FILE] [--docs FOLDER]

A cluster of 72 nodes of 8 GPUs in four NVLink domains; a thousand gangs arrive one after the other (Poisson), stay for
a random time (exponential) and go. A gang is placed whole, in one domain, when it arrives, or it is lost. The three
ways to choose see the same arrivals:

- ours: `disagg_operator.core.placement.plan`, the object that the operator runs.
- first-fit: the first domain, and in it the first node with room, in the order of names, pods as they come.
- spread: the emptiest domain, and in it the emptiest node, as a scheduler that balances load does.

Told for each load offered (GPUs asked for at a time over GPUs there are): gangs that were accepted, the same weighted
by GPUs, gangs that were refused although an exact search finds a domain for them, and fragmentation seen by arrivals:
the share of the free GPUs that are not on wholly free nodes, and the largest block that is free in one domain. The
table is written between the marks in docs/placement.md, and a plot beside it.
"""

import argparse
import heapq
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean

from results import FOLDER, ROOT, store

from disagg_contract.labels import GPU_CLIQUE, GPU_RESOURCE, HOSTNAME
from disagg_operator.core.placement import GangRequest, NodeView, Placed, PodDemand, PodUse, Snapshot, plan

DOMAINS, NODES, GPUS = 4, 18, 8
LOADS = (0.6, 0.7, 0.8, 0.9, 1.0, 1.2)
MARKS = ("<!-- placement quality: begin -->", "<!-- placement quality: end -->")
FIRST_SEED = 0

Rooms = dict[str, int]
"""Free GPUs by node."""
Choice = Callable[["Gang", Rooms], dict[int, str] | None]
"""Node by pod, or None."""

VIEWS = tuple(
    NodeView(
        name=f"n{domain}-{index:02}",
        labels={HOSTNAME: f"n{domain}-{index:02}", GPU_CLIQUE: f"domain-{domain}"},
        allocatable={GPU_RESOURCE: GPUS, "pods": 110},
    )
    for domain in range(DOMAINS)
    for index in range(NODES)
)
BY_DOMAIN = {f"domain-{d}": [view.name for view in VIEWS[d * NODES : (d + 1) * NODES]] for d in range(DOMAINS)}


@dataclass(frozen=True, slots=True)
class Gang:
    """One arrival: GPUs by pod, when it comes and how long it stays."""

    sizes: tuple[int, ...]
    at: float
    stay: float

    @property
    def gpus(self) -> int:
        return sum(self.sizes)


def arrivals(load: float, number: int, seed: int) -> list[Gang]:
    """Deployments of 1 to 4 prefill and 1 to 6 decode instances on 1, 2, 4 or 8 GPUs each, drawn anew each time."""
    rng = random.Random(seed)
    sizes = [
        (rng.choice([1, 2, 4, 8]),) * rng.randint(1, 4) + (rng.choice([1, 2, 4, 8]),) * rng.randint(1, 6)
        for _ in range(number)
    ]
    mean = fmean(sum(gang) for gang in sizes)
    gap = mean / (load * DOMAINS * NODES * GPUS)
    found, now = [], 0.0
    for gang in sizes:
        now += rng.expovariate(1 / gap)
        found.append(Gang(gang, now, rng.expovariate(1.0)))
    return found


def snapshot(rooms: Rooms) -> Snapshot:
    return Snapshot.take(VIEWS, [PodUse(name, name, ((GPU_RESOURCE, GPUS - left),)) for name, left in rooms.items()])


def ours(gang: Gang, rooms: Rooms) -> dict[int, str] | None:
    pods = tuple(
        PodDemand(uid=str(index), name=str(index), role="decode", requests={GPU_RESOURCE: gpus})
        for index, gpus in enumerate(gang.sizes)
    )
    outcome = plan(GangRequest(pods=pods, required=GPU_CLIQUE), snapshot(rooms))
    return {int(uid): node.name for uid, node in outcome.nodes.items()} if isinstance(outcome, Placed) else None


def first_fit(gang: Gang, rooms: Rooms) -> dict[int, str] | None:
    for names in BY_DOMAIN.values():
        found = _fill(gang, {name: rooms[name] for name in names}, lambda left: 0)
        if found is not None:
            return found
    return None


def spread(gang: Gang, rooms: Rooms) -> dict[int, str] | None:
    for names in sorted(BY_DOMAIN.values(), key=lambda names: -sum(rooms[name] for name in names)):
        found = _fill(gang, {name: rooms[name] for name in names}, lambda left: -left)
        if found is not None:
            return found
    return None


def _fill(gang: Gang, left: Rooms, rank: Callable[[int], int]) -> dict[int, str] | None:
    """Pods as they come, each on the node with room that ranks first."""
    found: dict[int, str] = {}
    for index, gpus in enumerate(gang.sizes):
        fitting = [name for name, room in left.items() if room >= gpus]
        if not fitting:
            return None
        best = min(fitting, key=lambda name: (rank(left[name]), name))
        left[best] -= gpus
        found[index] = best
    return found


WAYS: dict[str, Choice] = {"ours": ours, "first-fit": first_fit, "spread": spread}


@dataclass(slots=True)
class Tally:
    """What came of one run."""

    accepted: int = 0
    gangs: int = 0
    accepted_gpus: int = 0
    gpus: int = 0
    overlooked: int = 0
    broken: list[float] = field(default_factory=list)
    largest: list[float] = field(default_factory=list)


def run(gangs: Sequence[Gang], choose: Choice) -> Tally:
    """A loss system: arrivals are placed at once or lost."""
    rooms = {view.name: GPUS for view in VIEWS}
    leaving: list[tuple[float, int, dict[str, int]]] = []
    tally = Tally()
    for number, gang in enumerate(gangs):
        while leaving and leaving[0][0] <= gang.at:
            for name, gpus in heapq.heappop(leaving)[2].items():
                rooms[name] += gpus
        free = sum(rooms.values())
        if free:
            whole = sum(left for left in rooms.values() if left == GPUS)
            tally.broken.append(1 - whole / free)
        tally.largest.append(max(sum(rooms[name] for name in names) for names in BY_DOMAIN.values()))
        found = choose(gang, rooms)
        tally.gangs += 1
        tally.gpus += gang.gpus
        if found is None:
            tally.overlooked += choose is not ours and ours(gang, rooms) is not None
            continue
        tally.accepted += 1
        tally.accepted_gpus += gang.gpus
        held: dict[str, int] = {}
        for index, name in found.items():
            held[name] = held.get(name, 0) + gang.sizes[index]
        for name, gpus in held.items():
            rooms[name] -= gpus
            if rooms[name] < 0:
                raise SystemExit(f"{name} is over-booked")
        heapq.heappush(leaving, (gang.at + gang.stay, number, held))
    return tally


Row = dict[str, float]


def measure(number: int, seeds: int) -> dict[str, dict[str, Row]]:
    """Means over seeds by load and way."""
    table: dict[str, dict[str, Row]] = {}
    for load in LOADS:
        rows: dict[str, Row] = {}
        for way, choose in WAYS.items():
            tallies = [run(arrivals(load, number, FIRST_SEED + seed), choose) for seed in range(seeds)]
            rows[way] = {
                "accepted": fmean(tally.accepted / tally.gangs for tally in tallies),
                "accepted_by_gpus": fmean(tally.accepted_gpus / tally.gpus for tally in tallies),
                "overlooked": fmean(tally.overlooked for tally in tallies),
                "fragmentation": fmean(fmean(tally.broken) for tally in tallies),
                "largest_free_block_gpus": fmean(fmean(tally.largest) for tally in tallies),
            }
            print(f"load {load:.1f} {way:<10}", "  ".join(f"{name} {value:.3f}" for name, value in rows[way].items()))
        table[f"{load:.1f}"] = rows
    return table


def markdown(table: dict[str, dict[str, Row]], number: int, seeds: int) -> str:
    lines = [
        "| load | way | gangs accepted | by GPUs | overlooked | free GPUs on broken nodes | largest block |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for load, rows in table.items():
        for way, row in rows.items():
            lines.append(
                f"| {load} | {way} | {row['accepted']:.1%} | {row['accepted_by_gpus']:.1%} | {row['overlooked']:.1f} | "
                f"{row['fragmentation']:.1%} | {row['largest_free_block_gpus']:.0f} GPUs |"
            )
    return "\n".join(
        [f"{number} arrivals, means over {seeds} seeds, by `benchmarks/placement_quality.py`:", "", *lines]
    )


def draw(table: dict[str, dict[str, Row]], path: Path) -> None:
    """Acceptance and fragmentation against the load offered."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.ticker import PercentFormatter

    panels = (
        ("accepted_by_gpus", "accepted, by GPUs asked for"),
        ("fragmentation", "free GPUs that are on broken nodes"),
        ("largest_free_block_gpus", "largest free block in a domain, GPUs"),
    )
    style = {"ours": ("#1b6ca8", "o", "-"), "first-fit": ("#e08e0b", "s", "--"), "spread": ("#b0413e", "^", ":")}
    figure, axes = pyplot.subplots(1, len(panels), figsize=(12, 3.8), layout="constrained")
    loads = [float(load) for load in table]
    for axis, (name, title) in zip(axes, panels, strict=True):
        for way, (colour, marker, line) in style.items():
            values = [rows[way][name] for rows in table.values()]
            axis.plot(loads, values, color=colour, marker=marker, linestyle=line, label=way)
        axis.set_title(title, fontsize=11)
        axis.set_xlabel("load offered (GPUs asked for / GPUs)")
        axis.grid(alpha=0.3)
        if "gpus" not in name or name.startswith("accepted"):
            axis.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        axis.set_ylim(bottom=0 if name != "accepted_by_gpus" else None)
    axes[0].legend(frameon=False)
    figure.savefig(path, dpi=110, metadata={"Software": None})
    pyplot.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description="acceptance and fragmentation of gang placement")
    parser.add_argument("--arrivals", type=int, default=1000)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--json", type=Path, default=FOLDER / "placement_quality.json")
    parser.add_argument("--docs", type=Path, default=ROOT / "docs")
    arguments = parser.parse_args()
    table = measure(arguments.arrivals, arguments.seeds)
    page = arguments.docs / "placement.md"
    text = page.read_text(encoding="utf-8")
    before, _, rest = text.partition(MARKS[0])
    _, _, after = rest.partition(MARKS[1])
    filled = f"{before}{MARKS[0]}\n{markdown(table, arguments.arrivals, arguments.seeds)}\n{MARKS[1]}{after}"
    page.write_text(filled, encoding="utf-8")
    draw(table, arguments.docs / "placement-quality.png")
    figures = {"arrivals": arguments.arrivals, "seeds": arguments.seeds, "by_load": table}
    store(arguments.json, seed=FIRST_SEED, figures=figures)


if __name__ == "__main__":
    main()
