"""The rule cases, shared with the integration tests that put them to a real API server."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.rules import CASES, merge, parametrize

pytest_generate_tests = parametrize


@pytest.fixture
def base_of() -> Any:
    """kind, patch → document."""
    return lambda kind, patch: merge(CASES["base"][kind], patch)
