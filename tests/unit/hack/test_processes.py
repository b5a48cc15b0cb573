"""Finding a cluster's processes: by the marks in their environment and by control group, never by name."""

import subprocess
import sys
from pathlib import Path

import pytest

from embedded import processes
from embedded.processes import POD_ROLE, ROLE_MARK, SHIM_ROLE, SPEC_MARK, STATE_MARK, by_role, find, fingerprint

STATE = Path("/var/tmp/one")
CGROUP = "disagg-1"


class FakeProc:
    """A /proc with the four files that are read."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def add(
        self,
        pid: int,
        *,
        environ: dict[str, str] | None = None,
        command: tuple[str, ...] = ("kubelet",),
        cgroup: str = "/",
        condition: str = "S",
        started: int = 100,
    ) -> None:
        folder = self.root / str(pid)
        folder.mkdir()
        marks = "".join(f"{name}={value}\0" for name, value in (environ or {}).items())
        (folder / "environ").write_text(marks)
        (folder / "cmdline").write_text("\0".join(command) + "\0")
        (folder / "cgroup").write_text(f"3:cpuset:{cgroup}\n0::{cgroup}\n")
        fields = [condition, *["0"] * 18, str(started), "4096", "256"]
        (folder / "stat").write_text(f"{pid} (a name) with) parentheses) {' '.join(fields)}\n")


@pytest.fixture
def proc(tmp_path: Path) -> FakeProc:
    (tmp_path / "self").mkdir()
    return FakeProc(tmp_path)


def marks(role: str, *, state: Path = STATE, spec: str = "s") -> dict[str, str]:
    return {"PATH": "/bin", STATE_MARK: str(state), ROLE_MARK: role, SPEC_MARK: spec}


def roles(proc: FakeProc) -> dict[int, str]:
    return {process.pid: process.role for process in find(STATE, cgroup=CGROUP, proc=proc.root)}


def test_marked_processes_are_found_and_others_are_not(proc: FakeProc) -> None:
    proc.add(10, environ=marks("kubelet-1"))
    proc.add(11, environ=marks("kubelet-1", state=Path("/var/tmp/two")))
    proc.add(12, environ=marks("kubelet-1", state=Path("/var/tmp/one-more")))
    proc.add(13, command=("kubelet", "--config=/var/tmp/one/node-1/kubelet.json"))
    assert roles(proc) == {10: "kubelet-1"}


def test_what_runs_in_pods_is_found_by_its_control_group(proc: FakeProc) -> None:
    proc.add(20, cgroup="/disagg-1/node-2/kubepods/besteffort/pod1/c1", command=("sleep",))
    proc.add(21, cgroup="/disagg-11/node-1/kubepods/pod1/c1", command=("sleep",))
    proc.add(22, cgroup="/other/disagg-1/node-1/x", command=("sleep",))
    assert roles(proc) == {20: f"{POD_ROLE}-2"}


def test_a_shim_is_told_from_the_containerd_whose_marks_it_inherits(proc: FakeProc) -> None:
    proc.add(30, environ=marks("containerd-2"), command=("containerd", "--config", "x"))
    shim = ("containerd-shim-runc-v2", "-namespace", "k8s.io", "-id", "abc", "-address", "/x/containerd.sock")
    proc.add(31, environ=marks("containerd-2"), command=shim)
    assert roles(proc) == {30: "containerd-2", 31: f"{SHIM_ROLE}-2"}


@pytest.mark.parametrize("condition", ["Z", "X"])
def test_the_dead_are_not_listed(proc: FakeProc, condition: str) -> None:
    proc.add(40, environ=marks("etcd"), condition=condition)
    assert roles(proc) == {}


def test_a_process_that_ends_while_it_is_looked_at_is_skipped(proc: FakeProc) -> None:
    proc.add(50, environ=marks("etcd"))
    (proc.root / "50/stat").unlink()
    proc.add(51, environ=marks("apiserver"))
    assert roles(proc) == {51: "apiserver"}


def test_a_role_is_its_oldest_process(proc: FakeProc) -> None:
    proc.add(61, environ=marks("kubelet-1"), started=900)
    proc.add(60, environ=marks("kubelet-1"), started=500)
    assert by_role(find(STATE, cgroup=CGROUP, proc=proc.root))["kubelet-1"].pid == 60


def test_memory_is_read_in_pages(proc: FakeProc) -> None:
    proc.add(70, environ=marks("etcd", spec="abc"))
    (process,) = find(STATE, cgroup=CGROUP, proc=proc.root)
    assert (process.spec, process.resident_kib) == ("abc", 1024)


def test_a_changed_command_or_file_changes_the_fingerprint(tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text("a")
    prints = {fingerprint(["x", "y"], (config,)), fingerprint(["x", "z"], (config,)), fingerprint(["x", "y"])}
    config.write_text("b")
    prints.add(fingerprint(["x", "y"], (config,)))
    assert len(prints) == 4


def test_a_started_process_is_found_and_stopped(tmp_path: Path) -> None:
    def mine() -> list[processes.Process]:
        return find(tmp_path, cgroup="none")

    argv = [sys.executable, "-c", "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)"]
    processes.spawn(argv, state=tmp_path, role="etcd", spec="1", log=tmp_path / "logs/etcd.log")
    assert by_role(mine())["etcd"].age_seconds < 60
    processes.stop(mine, grace_seconds=0.2)
    assert mine() == []
    assert "start:" in (tmp_path / "logs/etcd.log").read_text()


def test_nothing_is_stopped_that_has_no_marks(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "30"], env={"ROLE": str(tmp_path)}) as bystander:
        processes.stop(lambda: find(tmp_path, cgroup="none"), grace_seconds=0)
        assert bystander.poll() is None
        bystander.kill()
