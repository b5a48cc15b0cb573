"""What tests of command lines share."""

from collections.abc import Callable

import pytest

from disagg_cli.main import main

Said = Callable[..., str]


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Said:
    """Runs a command line, checks its exit status (0 unless `status` is given), and returns what it printed."""

    def run(*arguments: str, status: int = 0, stream: str = "out") -> str:
        assert main(arguments) == status
        captured = capsys.readouterr()
        return str(getattr(captured, stream))

    return run


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Said:
    """Runs a command line that is refused with one sentence, and returns the sentence."""

    def run(*arguments: str, status: int = 2) -> str:
        assert main(arguments) == status
        out, err = capsys.readouterr()
        assert out == ""
        assert err.count("\n") == 1
        return str(err).strip()

    return run
