"""Values on command lines."""

from argparse import ArgumentTypeError

import pytest

from disagg_cli.parsing import window


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("10m:20m", (600, 1200)), ("0:90", (0, 90)), ("1h:1.5h", (3600, 5400)), ("250ms:1", (0.25, 1))],
)
def test_a_stretch_of_time(text: str, seconds: tuple[float, float]) -> None:
    assert window(text) == seconds


@pytest.mark.parametrize("text", ["", "10m", "10m:", "20m:10m", "5:5", "a:b", "1:2:3", "nan:5", "-1:5"])
def test_what_is_no_stretch_of_time_is_named(text: str) -> None:
    with pytest.raises(ArgumentTypeError, match="no stretch of time, like 10m:20m"):
        window(text)
