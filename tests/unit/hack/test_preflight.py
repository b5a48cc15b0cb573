"""The preflight check: one message that names everything that is missing and how to get it."""

from dataclasses import replace
from pathlib import Path

import pytest

from embedded import preflight
from embedded.errors import PreflightError
from embedded.preflight import Machine, missing_packages, problems

CACHE = Path("/home/user/.cache/disagg")
FIT = Machine(system="Linux", is_root=True, go_version=(9, 0), absent=frozenset(), cgroups_writable=True, has_apt=True)


def test_a_fit_machine_has_no_problem() -> None:
    assert problems(FIT, ("cluster", "images"), cache=CACHE) == []


def test_everything_is_said_at_once() -> None:
    poor = Machine("Linux", False, None, frozenset({"containerd", "ctr", "buildah"}), False, True)
    text = "\n".join(problems(poor, ("cluster", "images"), cache=Path("/var/lib/disagg")))
    for part in (
        "sudo",
        "Go is not installed",
        "apt-get install",
        "buildah containerd",
        "DISAGG_CACHE",
    ):
        assert part in text


def test_read_only_control_groups_are_judged_by_root_alone() -> None:
    (problem,) = problems(replace(FIT, cgroups_writable=False), ("cluster",), cache=CACHE)
    assert "--privileged" in problem
    (problem,) = problems(replace(FIT, cgroups_writable=False, is_root=False), ("cluster",), cache=CACHE)
    assert "sudo" in problem


def test_a_package_is_named_once() -> None:
    machine = replace(FIT, absent=frozenset({"containerd", "ctr", "/usr/lib/cni/bridge"}))
    assert missing_packages(machine, ("cluster",)) == ["containerd", "containernetworking-plugins"]


def test_an_old_compiler_is_fine_where_it_may_fetch_a_newer_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOTOOLCHAIN", "auto")
    assert problems(replace(FIT, go_version=(1, 21)), ("build",), cache=CACHE) == []
    monkeypatch.setenv("GOTOOLCHAIN", "local")
    (problem,) = problems(replace(FIT, go_version=(1, 21)), ("build",), cache=CACHE)
    assert "Go 1.21 is too old" in problem


def test_compiling_needs_neither_root_nor_packages() -> None:
    assert problems(replace(FIT, is_root=False, cgroups_writable=False), ("build",), cache=CACHE) == []


def test_elsewhere_than_on_linux_kind_is_recommended() -> None:
    assert "kind" in problems(replace(FIT, system="Darwin"), ("cluster",), cache=CACHE)[0]


@pytest.mark.parametrize("may_install", [True, False])
def test_packages_are_installed_only_when_allowed(monkeypatch: pytest.MonkeyPatch, may_install: bool) -> None:
    installed: list[str] = []
    monkeypatch.setattr(preflight, "inspect", lambda purposes: replace(FIT, absent=frozenset({"runc"})))
    monkeypatch.setattr(preflight, "_install", installed.extend)
    with pytest.raises(PreflightError, match="runc"):
        preflight.require("cluster", cache=CACHE, may_install=may_install)
    assert installed == (["runc"] if may_install else [])


def test_a_policy_that_was_there_stays(tmp_path: Path) -> None:
    policy = tmp_path / "policy-rc.d"
    with preflight._no_daemons(policy):
        assert policy.stat().st_mode & 0o111
        assert "exit 101" in policy.read_text()
    assert not policy.exists()
    policy.write_text("mine")
    with preflight._no_daemons(policy):
        assert policy.read_text() == "mine"
    assert policy.read_text() == "mine"
