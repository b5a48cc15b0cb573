"""The report: what is counted, what is a miss, and what other programs read."""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from disagg_load.errors import LoadError
from disagg_load.records import Outcome, RequestRecord
from disagg_load.report import Distribution, ReplayFacts, Report, Slo, build_report
from disagg_load.requests import percentile
from disagg_load.shell.files import write_report
from disagg_load.shell.tables import print_report, show_seconds, show_share

SLO = Slo(ttft_seconds=0.25, tpot_seconds=0.1)


def facts(**changes: Any) -> ReplayFacts:
    values: dict[str, Any] = {
        "trace": "builtin:chat[1]",
        "url": "http://router",
        "model": "opt-13b",
        "seed": 0,
        "rate_scale": 1.0,
        "time_scale": 1.0,
        "planned": 3,
        "interrupted": False,
    }
    return ReplayFacts(**(values | changes))


def record(
    index: int = 0, *, ttft: float | None = 0.2, tpot: float = 0.05, tokens: int = 11, **more: Any
) -> RequestRecord:
    sent = float(index)
    first = None if ttft is None else sent + ttft
    last = None if first is None else first + tpot * (tokens - 1)
    values: dict[str, Any] = {
        "index": index,
        "scheduled_seconds": sent,
        "sent_seconds": sent,
        "finished_seconds": sent + 1 if last is None else last,
        "outcome": Outcome.COMPLETED,
        "input_tokens": 100,
        "asked_tokens": tokens,
        "tokens": tokens,
        "first_token_seconds": first,
        "last_token_seconds": last,
        "gaps_seconds": [tpot] * (tokens - 1),
    }
    return RequestRecord(**(values | more))


def report(*records: RequestRecord, **changes: Any) -> Report:
    return build_report(records, slo=SLO, facts=facts(**changes))


def test_all_good() -> None:
    found = report(record(0), record(1), record(2))
    assert (found.requests, found.completed, found.errors, found.truncated, found.late) == (3, 3, {}, 0, 0)
    assert found.attainment is not None
    assert (found.attainment.ttft, found.attainment.tpot, found.attainment.both) == (1, 1, 1)
    assert found.duration_seconds == pytest.approx(2.7)
    assert found.good_requests_per_second == pytest.approx(3 / 2.7)
    assert found.throughput_tokens_per_second == pytest.approx(33 / 2.7)
    assert found.offered_requests_per_second == pytest.approx(1.5)


def test_each_slo_and_both() -> None:
    found = report(record(0), record(1, ttft=0.3), record(2, tpot=0.2), record(3, ttft=0.3, tpot=0.2))
    assert found.attainment is not None
    assert (found.attainment.ttft, found.attainment.tpot, found.attainment.both) == (0.5, 0.5, 0.25)
    assert found.good_requests == 1


def test_an_slo_is_met_at_its_value() -> None:
    found = report(record(0, ttft=0.25, tpot=0.0625))
    assert found.good_requests == 1


@pytest.mark.parametrize("outcome", [outcome for outcome in Outcome if outcome.is_error])
def test_errors_are_misses_however_fast_they_were(outcome: Outcome) -> None:
    found = report(record(0), record(1, outcome=outcome, message="why"))
    assert found.attainment is not None
    assert found.attainment.both == 0.5
    assert (found.errors, found.first_error, found.completed) == ({outcome.value: 1}, "why", 1)
    assert found.ttft_seconds == Distribution.of([0.2])


def test_truncated_and_late_requests_are_misses() -> None:
    found = report(record(0), record(1, outcome=Outcome.TRUNCATED, tokens=5), record(2, late=True))
    assert found.attainment is not None
    assert (found.attainment.ttft, found.attainment.tpot, found.attainment.both) == pytest.approx((1 / 3,) * 3)
    assert (found.truncated, found.late, found.completed) == (1, 1, 2)


def test_an_answer_of_one_token_has_no_tpot_and_meets_it() -> None:
    found = report(record(0, tokens=1), record(1, tokens=1, ttft=0.3))
    assert found.tpot_seconds is None
    assert found.attainment is not None
    assert (found.attainment.ttft, found.attainment.tpot) == (0.5, 1)
    assert found.to_json()["per_request"][0]["tpot_seconds"] is None


def test_what_was_cut_off_is_not_counted() -> None:
    found = report(record(0), record(1, ttft=None, outcome=Outcome.UNFINISHED), interrupted=True)
    assert (found.requests, found.unfinished, found.good_requests) == (2, 1, 1)
    assert found.attainment is not None
    assert found.attainment.both == 1


def test_nothing_sent_has_no_figures() -> None:
    found = report()
    assert found.attainment is None
    assert found.ttft_seconds is None
    assert found.good_requests_per_second is None
    json.dumps(found.to_json(), allow_nan=False)


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=50))
def test_sm8_the_mean_is_the_mean_of_the_list(values: list[float]) -> None:
    records = [record(index, ttft=value) for index, value in enumerate(values)]
    document = report(*records).to_json()
    listed = [row["ttft_seconds"] for row in document["per_request"]]
    assert document["ttft_seconds"]["mean"] == pytest.approx(sum(listed) / len(listed), rel=1e-12)
    assert document["ttft_seconds"]["p90"] == pytest.approx(percentile(sorted(listed), 90), rel=1e-9)
    assert document["ttft_seconds"]["max"] == max(listed)


@given(st.lists(st.sampled_from(list(Outcome)), max_size=40))
def test_pm9_every_request_is_in_exactly_one_class(outcomes: list[Outcome]) -> None:
    document = report(*(record(index, outcome=outcome) for index, outcome in enumerate(outcomes))).to_json()
    classes = document["completed"] + document["truncated"] + document["errors"] + document["unfinished"]
    assert classes == document["requests"] == len(outcomes)
    assert sum(document["errors_by_kind"].values()) == document["errors"]


def test_row_28_a_few_slow_steps_miss_the_mean() -> None:
    """REFERENCE row 28: 0.2 s + 299 steps of 40 ms end at 12.16 s; 5 % of steps at 300 ms make the mean 53 ms."""
    steady = record(0, ttft=0.2, tpot=0.040, tokens=300)
    assert steady.finished_seconds == pytest.approx(12.16)
    gaps = [0.3] * 15 + [0.04] * 284
    jumpy = record(1, ttft=0.2, tpot=sum(gaps) / 299, tokens=300)
    assert jumpy.tpot_seconds == pytest.approx(0.053, abs=5e-4)
    found = build_report([steady, jumpy], slo=Slo(ttft_seconds=1, tpot_seconds=0.05), facts=facts())
    assert found.attainment is not None
    assert found.attainment.tpot == 0.5


def test_row_29_good_requests_and_throughput_part() -> None:
    """REFERENCE row 29: 100 req/s with 60 good ones lose to 90 with 88."""

    def second(sent: int, good: int) -> Report:
        times = {"sent_seconds": 0.0, "finished_seconds": 1.0}
        rows = [
            record(index, tokens=1, first_token_seconds=0.2 if index < good else 0.9, **times) for index in range(sent)
        ]
        return report(*rows)

    busy, careful = second(100, 60), second(90, 88)
    assert busy.throughput_requests_per_second == pytest.approx(100)
    assert careful.throughput_requests_per_second == pytest.approx(90)
    assert careful.good_requests_per_second == pytest.approx(88)
    assert busy.good_requests_per_second == pytest.approx(60)


def test_modelled_seconds_are_the_clocks_times_the_scale() -> None:
    real = record(3, ttft=0.02, tpot=0.005)
    modelled = real.scaled(10)
    assert modelled.ttft_seconds == pytest.approx(0.2)
    assert modelled.tpot_seconds == pytest.approx(0.05)
    assert list(modelled.gaps_seconds) == pytest.approx([0.05] * 10)
    assert modelled.finished_seconds == pytest.approx(real.finished_seconds * 10)
    assert real.scaled(1) is real


def test_the_json_names_are_a_contract(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    write_report(report(record(0)), str(path))
    document = json.loads(path.read_text())
    names = """schema trace url model seed rate_scale time_scale planned interrupted slo requests completed truncated
        unfinished late errors errors_by_kind first_error requests_over_context duration_seconds
        offered_requests_per_second throughput_requests_per_second throughput_tokens_per_second good_requests
        good_requests_per_second input_tokens output_tokens ttft_seconds tpot_seconds tbt_seconds e2e_seconds
        attainment per_request"""
    assert document["schema"] == "disagg.dev/replay/v1"
    assert sorted(document) == sorted(names.split())
    assert sorted(document["ttft_seconds"]) == ["max", "mean", "p50", "p90", "p99"]
    assert sorted(document["attainment"]) == ["both", "tpot", "ttft"]
    assert sorted(document["slo"]) == ["tpot_seconds", "ttft_seconds"]


def test_a_report_that_cant_be_written_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match=r"the report can't be written to .*: no such file or directory"):
        write_report(report(record(0)), str(tmp_path / "nowhere" / "report.json"))


def test_distribution_is_numpys() -> None:
    values = np.random.default_rng(1).random(1001)
    found = Distribution.of(values)
    assert found is not None
    assert (found.p50, found.p99) == (np.percentile(values, 50), np.percentile(values, 99))


def show(found: Report) -> str:
    out = io.StringIO()
    print_report(found, Console(file=out, width=100))
    return out.getvalue()


def test_the_table_fits_and_says_what_matters() -> None:
    text = show(report(record(0), record(1, ttft=0.3), record(2)))
    assert max(map(len, text.splitlines())) <= 100
    assert "builtin:chat[1] on opt-13b at http://router" in text
    assert "66.7 %" in text
    assert "3 requests: 3 completed, 0 truncated, 0 errors, 0 sent late" in text


def test_the_table_warns() -> None:
    text = show(
        report(
            record(0, late=True),
            record(1, outcome=Outcome.STATUS, message="HTTP 503: [busy]"),
            record(2, outcome=Outcome.UNFINISHED),
            interrupted=True,
            planned=9,
            time_scale=10.0,
        )
    )
    assert "interrupted: 3 of 9 requests were sent" in text
    assert "errors (1 status) are misses; the first: HTTP 503: [busy]" in text
    assert "late requests are misses" in text
    assert "modelled seconds" in text


def test_an_empty_report_prints() -> None:
    assert "0 requests" in show(report())


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0, "0 ms"), (0.00123, "1.23 ms"), (0.0231, "23.1 ms"), (0.25, "250 ms"), (1.204, "1.20 s"), (312.4, "312 s")],
)
def test_durations_read_well(seconds: float, text: str) -> None:
    assert show_seconds(seconds) == text


@pytest.mark.parametrize(
    ("share", "text"),
    [(1, "100.0 %"), (0.9999, "> 99.9 %"), (0.95, "95.0 %"), (0.0001, "< 0.1 %"), (0, "0.0 %")],
)
def test_shares_are_only_whole_when_they_are(share: float, text: str) -> None:
    assert show_share(share) == text
