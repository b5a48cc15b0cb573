"""Examples and chart notes speak of models, GPUs and links that the engine's catalogues know."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from disagg_crds import load_deployment
from disagg_engine import catalogue

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.yaml"))


@pytest.mark.parametrize("path", EXAMPLES, ids=[path.stem for path in EXAMPLES])
def test_examples_name_what_the_catalogues_hold(path: Path) -> None:
    known = catalogue.default()
    for deployment in load_deployment(path.read_text(encoding="utf-8")):
        assert known.model(deployment.spec.model)
        assert known.link(deployment.spec.link.type)
        for section in deployment.spec.roles.values():
            assert known.gpu(section.gpu.type).name == section.gpu.type


def test_chart_notes_deploy_something_that_exists() -> None:
    notes = (ROOT / "charts/disagg/templates/NOTES.txt").read_text(encoding="utf-8")
    names = re.search(r"<<DEPLOYMENT\n(.*?)\n *DEPLOYMENT\n", notes, re.DOTALL)
    assert names
    manifest = re.sub(r"\{\{.*?\}\}", "", names[1])
    (deployment,) = load_deployment(manifest)
    known = catalogue.default()
    assert known.model(deployment.spec.model)
    assert [known.gpu(section.gpu.type).name for section in deployment.spec.roles.values()] == ["a100-80gb"] * 2
