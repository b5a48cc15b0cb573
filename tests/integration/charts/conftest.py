"""Rendered charts, as dictionaries. Rendering needs the `helm` program and no cluster."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.kube import program, run

CHART = Path(__file__).resolve().parents[3] / "charts" / "disagg"
Render = Callable[..., list[dict[str, Any]]]


@pytest.fixture(scope="session")
def chart() -> Path:
    return CHART


@pytest.fixture(scope="session")
def render() -> Render:
    """`render("fakeGpus.enabled=true", ...)`: the documents of release `disagg` in namespace `disagg-system`."""

    def rendered(*values: str, text: tuple[str, ...] = (), namespace: str = "disagg-system") -> list[dict[str, Any]]:
        sets = [part for value in values for part in ("--set", value)]
        sets += [part for value in text for part in ("--set-string", value)]
        out = run(program("helm"), "template", "disagg", str(CHART), f"--namespace={namespace}", *sets)
        return [document for document in yaml.safe_load_all(out) if document is not None]

    return rendered
