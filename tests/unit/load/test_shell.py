"""Files, limits and progress."""

import io
import resource
from pathlib import Path

import pytest
from rich.console import Console

from disagg_load.errors import TraceError, WorkloadError
from disagg_load.records import Outcome, RequestRecord
from disagg_load.shell.files import load_columns, load_workload
from disagg_load.shell.http import parse_url
from disagg_load.shell.limits import allow_connections
from disagg_load.shell.progress import show_progress


def finished(index: int, outcome: Outcome = Outcome.COMPLETED) -> RequestRecord:
    return RequestRecord(
        index=index,
        scheduled_seconds=0,
        sent_seconds=0,
        finished_seconds=1,
        outcome=outcome,
        input_tokens=1,
        asked_tokens=1,
    )


def test_a_trace_is_a_file_or_built_in(tmp_path: Path) -> None:
    path = tmp_path / "own.jsonl"
    path.write_text('{"arrival_seconds": 1, "input_tokens": 5, "output_tokens": 2}\n')
    assert load_workload(str(path), seed=0).requests[0].input_tokens == 5
    assert len(load_workload("builtin:chat", seed=0, limit=7).requests) == 7


def test_a_window_and_a_limit_cut_objects_and_columns_alike(tmp_path: Path) -> None:
    path = tmp_path / "own.jsonl"
    path.write_text(
        "".join(f'{{"arrival_seconds": {time}, "input_tokens": {time + 1}, "output_tokens": 2}}\n' for time in range(9))
    )
    for trace in (str(path), "builtin:chat?rate=1&seconds=9"):
        whole = load_columns(trace, seed=0)
        inside = [
            tokens for time, tokens in zip(whole.arrival_seconds, whole.input_tokens, strict=True) if 2.5 <= time < 8
        ]
        for limit in (None, 2):
            load = load_workload(trace, seed=0, window=(2.5, 8), limit=limit)
            assert [request.input_tokens for request in load.requests] == inside[:limit]
            assert load.requests[0].arrival_seconds == 0
            assert load_columns(trace, seed=0, window=(2.5, 8), limit=limit).workload().requests == load.requests
        for read in (load_columns, load_workload):
            with pytest.raises(WorkloadError, match=r"no request of .* arrives from 90 to 91 s; the last arrives at"):
                read(trace, seed=0, window=(90, 91))


def test_a_missing_file_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(TraceError) as caught:
        load_workload(str(tmp_path / "none.csv"), seed=0)
    assert str(caught.value) == f"{tmp_path}/none.csv: no such file or directory"
    with pytest.raises(TraceError, match="is a directory"):
        load_workload(str(tmp_path), seed=0)


def test_a_binary_file_is_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "trace.parquet"
    path.write_bytes(b"PAR1\xff\xfe\x00")
    with pytest.raises(TraceError, match="not a text file"):
        load_workload(str(path), seed=0)


def test_connections_are_bounded_by_open_files(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = [(256, 4096)]
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda _, pair: limits.append(pair))
    assert allow_connections(100) == 100
    assert limits[-1] == (256, 4096)
    assert allow_connections(1000) == 1000
    assert limits[-1] == (1064, 4096)
    assert allow_connections(10_000) == 4096 - 64
    limits.append((resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert allow_connections(10_000) == 10_000


def test_plain_lines_come_at_most_every_ten_seconds() -> None:
    out = io.StringIO()
    now = [0.0]
    with show_progress(40, Console(file=out), lambda: now[0]) as observer:
        for index in range(40):
            now[0] += 0.6
            observer.sent(index)
            observer.finished(finished(index, Outcome.STATUS if index == 3 else Outcome.COMPLETED))
    lines = out.getvalue().splitlines()
    assert len(lines) == 2
    assert lines[0] == "16 of 40 finished, 1 in flight, 1 failed"


def test_a_terminal_gets_a_bar() -> None:
    out = io.StringIO()
    with show_progress(2, Console(file=out, force_terminal=True, width=100), lambda: 0.0) as observer:
        observer.sent(0)
        observer.finished(finished(0))
    assert "1/2" in out.getvalue()


@pytest.mark.parametrize(
    ("url", "authority", "path"),
    [
        ("http://127.0.0.1:8000", "127.0.0.1:8000", ""),
        ("127.0.0.1:8000", "127.0.0.1:8000", ""),
        ("http://router/v1/", "router:80", ""),
        ("https://host/serve/v1", "host:443", "/serve"),
        ("http://[::1]:8000", "[::1]:8000", ""),
    ],
)
def test_urls(url: str, authority: str, path: str) -> None:
    address = parse_url(url)
    assert (address.authority, address.path) == (authority, path)
