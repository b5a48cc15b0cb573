"""The command line: help that teaches, wrong use that is answered, and no cluster that is no surprise."""

from pathlib import Path

import pytest

from embedded.cli import main


def test_help_has_examples(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    assert "cluster.py up --kwok 1000" in capsys.readouterr().out


@pytest.mark.parametrize("command", [["status"], ["kubeconfig"], ["load-image", "a.tar", "a:1"]])
def test_without_a_cluster_it_says_how_to_start_one(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = f"/tmp/{tmp_path.name[-20:]}-none"
    assert main([*command, "--state", state]) == 1
    assert "start one with `up`" in capsys.readouterr().err


def test_an_unknown_module_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["build", "docker"]) == 2
    assert "unknown docker" in capsys.readouterr().err


def test_taking_down_what_is_not_there_is_fine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["down", "--state", f"/tmp/{tmp_path.name[-20:]}-none"]) == 0
    assert "there is no cluster" in capsys.readouterr().err
