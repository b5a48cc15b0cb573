"""Runs of real processes under load: their lag is reported, and a run that failed and lagged is void."""

from tests.support.lag import (  # noqa: F401 - hooks and a fixture work by being here
    lag,
    pytest_itemcollected,
    pytest_report_teststatus,
    pytest_runtest_call,
    pytest_runtest_protocol,
    pytest_terminal_summary,
)
