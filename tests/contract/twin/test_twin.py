"""The twin check: worker processes at time scale 1, and the simulator fed with what they recorded.

Token counts are equal, and TTFT and TPOT by the engine's clock are the same to 1 %, for each of 100 requests whose
prompts share prefixes. The wall clock lags behind the engine's; how far is in the summary at the end, and is no matter
of the check (`benchmarks/twin.py` bounds it).
"""

from pathlib import Path

import pytest

from disagg_contract.labels import Role
from disagg_load.records import Outcome
from disagg_load.requests import Workload
from disagg_load.workloads.builtin import builtin_workload
from tests.support.lag import LagWatch
from tests.support.twin import Record, compare, send, serving, simulate_twin

WITHIN = 0.01
LINKS = """
links:
  far:
    title: 100 Gb/s between two buildings
    aliases: []
    bandwidth: 12.5e+9
    latency_seconds: 0.15
    source: so long that what the bytes of a pull really take, on a busy loopback, is over before
"""
SEED = 20
LOAD = "sessions?requests=100&rate=10&apps=3&system=256&turns=4&input=80&output=40&block=16&longest=1024"


@pytest.fixture(scope="module")
def workload() -> Workload:
    return builtin_workload(LOAD, seed=SEED)


@pytest.mark.parametrize("roles", [(Role.WORKER,), (Role.PREFILL, Role.DECODE)], ids=["colocated", "1P1D"])
def test_processes_and_simulator_are_twins(
    roles: tuple[Role, ...], workload: Workload, tmp_path: Path, lag: LagWatch
) -> None:
    catalogue = tmp_path / "links.yaml"
    catalogue.write_text(LINKS)
    with serving(tmp_path, roles, model="opt-13b", gpu="a100-80gb", link="far", catalogue=str(catalogue)) as served:
        records = send(workload, served)
        lag.loops |= served.lag()
    assert [record.message for record in records if record.outcome is not Outcome.COMPLETED] == []
    assert sum(record.tokens for record in records) == sum(one.output_tokens for one in workload.requests)
    for worker in served.workers:
        recorded = Record.read(worker.log)
        assert len(recorded.requests) == len(workload.requests)
        twin = simulate_twin(recorded)
        difference = compare(recorded, twin)
        assert difference.ttft < WITHIN, (worker.name, difference)
        assert difference.tpot < WITHIN, (worker.name, difference)
        if worker.role is not Role.PREFILL:
            assert difference.mean_tpot_seconds[0] > 0.005, "steps shorter than that say more about the machine"
        hits = sum(record.prefix_hit_tokens for record in twin.instances if record.role is worker.role)
        assert hits > 0, "prefixes are found again"
