"""The CRDs' version against the operator's."""

import asyncio
import logging
from typing import Any, cast

import pytest
import yaml

from disagg_crds.generate import generated_files
from disagg_operator.errors import Forbidden
from disagg_operator.shell.kube.api import Api
from disagg_operator.shell.kube.versions import compare_versions, mismatches


def definitions(version: str) -> list[dict[str, Any]]:
    files = generated_files(version=version)
    return [yaml.safe_load(text) for name, text in files.items() if name.startswith("crds/")]


class Answering:
    def __init__(self, answer: list[dict[str, Any]] | Exception) -> None:
        self.answer = answer

    async def objects(self, resource: Any, *, selector: str) -> list[dict[str, Any]]:
        if isinstance(self.answer, Exception):
            raise self.answer
        key, _, value = selector.partition("=")
        return [item for item in self.answer if item["metadata"]["labels"].get(key) == value]


def said(answer: list[dict[str, Any]] | Exception, caplog: pytest.LogCaptureFixture) -> list[str]:
    with caplog.at_level(logging.INFO):
        asyncio.run(compare_versions(cast(Api, Answering(answer)), own="0.2.0"))
    return [record.getMessage() for record in caplog.records]


def test_hc1_a_schema_of_another_version_is_said_at_the_start(caplog: pytest.LogCaptureFixture) -> None:
    messages = said(definitions("0.1.0"), caplog)
    assert len(messages) == 2
    assert "CRD disaggdeployments.disagg.dev is of version 0.1.0, this operator of 0.2.0" in messages[0]
    assert "disagg crds | kubectl apply" in messages[0]


def test_the_same_version_is_no_news(caplog: pytest.LogCaptureFixture) -> None:
    assert said(definitions("0.2.0"), caplog) == []


def test_hc3_without_the_right_nothing_is_said(caplog: pytest.LogCaptureFixture) -> None:
    assert said(Forbidden("no", code=403), caplog) == []


def test_crds_of_others_do_not_count() -> None:
    other = {"metadata": {"name": "x.other.dev"}, "spec": {"group": "other.dev"}}
    bare = {"metadata": {"name": "x.disagg.dev"}, "spec": {"group": "disagg.dev"}}
    assert mismatches([other, bare], own="1") == [("x.disagg.dev", "")]
