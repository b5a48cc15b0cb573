"""The cache key of a Go program: it changes with all that decides what the build gives, and with nothing else."""

from dataclasses import replace
from pathlib import Path

import pytest

from embedded import binaries
from embedded.binaries import ETCD, HELM, KUBERNETES, MODULES, cache_key, link_flags, min_go_version, pinned_version
from embedded.errors import BuildError

GO = "go1.26.1 linux/amd64"


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of etcd's module that a test may change."""
    folder = tmp_path / "etcd"
    folder.mkdir()
    for name in ("go.mod", "go.sum"):
        (folder / name).write_bytes((ETCD.folder / name).read_bytes())
    (tmp_path / "kubernetes").mkdir()
    (tmp_path / "kubernetes/go.mod").write_bytes((KUBERNETES.folder / "go.mod").read_bytes())
    monkeypatch.setattr(binaries, "SOURCES", tmp_path)
    return folder


@pytest.mark.parametrize("name", ["go.mod", "go.sum"])
def test_the_key_changes_with_the_pins(sources: Path, name: str) -> None:
    before = cache_key(ETCD, go_version=GO)
    with (sources / name).open("a") as file:
        file.write("\n")
    assert cache_key(ETCD, go_version=GO) != before


def test_the_key_changes_with_sources_flags_and_compiler(sources: Path) -> None:
    keys = {cache_key(ETCD, go_version=GO), cache_key(ETCD, go_version="go1.27.0 linux/amd64")}
    keys.add(cache_key(replace(ETCD, version_flags=("-X main.version={version}",)), go_version=GO))
    (sources / "main.go").write_text("package main\n")
    keys.add(cache_key(ETCD, go_version=GO))
    assert len(keys) == 4


def test_the_key_ignores_what_is_not_built(sources: Path) -> None:
    before = cache_key(ETCD, go_version=GO)
    (sources / "notes.txt").write_text("nothing\n")
    assert cache_key(ETCD, go_version=GO) == before


@pytest.mark.parametrize("module", MODULES.values(), ids=list(MODULES))
def test_every_module_is_pinned(module: binaries.Module) -> None:
    assert (module.folder / "go.mod").is_file()
    if module.pinned:
        assert pinned_version(module) != "v0.0.0"
        assert (module.folder / "go.sum").is_file()


def test_programs_report_the_pinned_versions() -> None:
    version = pinned_version(KUBERNETES)
    assert f"gitVersion={version}" in link_flags(KUBERNETES)
    minor = version.split(".")[1]
    assert f"k8sVersionMinor={minor}" in link_flags(HELM)


def test_the_compiler_must_suit_every_module() -> None:
    assert min_go_version() >= (1, 24)


def test_an_unknown_program_is_named(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="'docker'"):
        binaries.program("docker", cache=tmp_path)
