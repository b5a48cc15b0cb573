"""Trace readers: what they accept, and the sentence they refuse the rest with."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disagg_load.errors import TraceError
from disagg_load.requests import TraceRequest, Workload, describe
from disagg_load.traces.own import write
from disagg_load.traces.reader import TimeUnit, TraceFormat, read_trace

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,396,109
2023-11-16 18:15:50.9951690,879,55
"""
MOONCAKE = """{"timestamp": 3000, "input_length": 600, "output_length": 5, "hash_ids": [0, 1]}
{"timestamp": 3000, "input_length": 512, "output_length": 7, "hash_ids": [0]}
{"timestamp": 3500, "input_length": 1100, "output_length": 9, "hash_ids": [0, 1, 2]}
"""
OWN = """{"arrival_seconds": 0.5, "input_tokens": 10, "output_tokens": 1}
{"arrival_seconds": 0.75, "input_tokens": 20, "output_tokens": 2}
"""


def read(text: str, **options: object) -> Workload:
    return read_trace(text.splitlines(keepends=True), source="trace", **options)  # type: ignore[arg-type]


def arrivals(load: Workload) -> list[float]:
    return [request.arrival_seconds for request in load.requests]


def test_azure() -> None:
    load = read(AZURE)
    assert arrivals(load) == [0.0, 4.314579, 4.314579]
    assert [(r.input_tokens, r.output_tokens) for r in load.requests] == [(374, 44), (396, 109), (879, 55)]


def test_azure_of_2024_has_offsets_and_may_order_its_columns_otherwise() -> None:
    load = read(
        "GeneratedTokens,TIMESTAMP,ContextTokens\r\n"
        "8,2024-05-10 00:00:00.009930+00:00,2162\r\n"
        "9,2024-05-10T02:00:01+02:00,2399\r\n"
    )
    assert arrivals(load) == [0.0, 0.99007]
    assert load.requests[0] == TraceRequest(arrival_seconds=0.0, input_tokens=2162, output_tokens=8)


def test_mooncake_keeps_hash_ids_and_equal_times() -> None:
    load = read(MOONCAKE)
    assert arrivals(load) == [0.0, 0.0, 0.5]
    assert [request.hash_ids for request in load.requests] == [(0, 1), (0,), (0, 1, 2)]
    assert load.block_tokens == 512


def test_own_format() -> None:
    assert arrivals(read(OWN)) == [0.0, 0.25]


def test_own_format_with_prompts_and_blocks() -> None:
    load = read(
        '{"arrival_milliseconds": 250, "input_tokens": 20, "output_tokens": 2,'
        ' "hash_ids": [7, 8], "block_tokens": 16}\n'
        '{"arrival_milliseconds": 1250, "output_tokens": 2, "prompt": [1, 2, 3], "block_tokens": 16}\n'
        '{"arrival_milliseconds": 1250, "input_tokens": 2, "output_tokens": 2, "prompt": "hé", "block_tokens": 16}\n'
    )
    assert arrivals(load) == [0.0, 1.0, 1.0]
    assert load.block_tokens == 16
    assert load.requests[0].hash_ids == (7, 8)
    assert (load.requests[1].prompt, load.requests[1].input_tokens) == ((1, 2, 3), 3)
    assert load.requests[2].prompt == "hé"


def test_limit_keeps_the_first_arrivals_and_still_checks_every_line() -> None:
    unsorted = OWN + '{"arrival_seconds": 0.1, "input_tokens": 30, "output_tokens": 3}\n'
    assert [request.input_tokens for request in read(unsorted, limit=2).requests] == [30, 10]
    with pytest.raises(TraceError, match="line 3"):
        read(OWN + "nonsense\n", limit=1)


def test_blank_lines_and_byte_order_marks_are_nothing() -> None:
    assert arrivals(read("\ufeff\n" + AZURE.replace("\n", "\n\n"))) == [0.0, 4.314579, 4.314579]
    assert arrivals(read("\ufeff" + OWN)) == [0.0, 0.25]


RELATIVE = [0.0, 0.1234567, 0.1234567, 12.5, 3600.75]


@pytest.mark.parametrize("shuffled", [False, True])
@pytest.mark.parametrize(
    ("field", "origin", "scale"),
    [
        ("arrival_seconds", 0, 1),
        ("arrival_seconds", 5, 1),
        ("arrival_seconds", 1_700_000_000, 1),
        ("arrival_milliseconds", 0, 1000),
        ("arrival_milliseconds", 1_700_000_000_000, 1000),
    ],
)
def test_sm7_relative_epoch_seconds_epoch_milliseconds_and_unsorted_read_the_same(
    field: str, origin: int, scale: int, shuffled: bool
) -> None:
    rows = []
    for number, time in enumerate(RELATIVE):
        whole, fraction = divmod(round(time * scale * 10**7), 10**7)
        stamp = f"{origin + whole}.{fraction:07d}"
        rows.append(f'{{"{field}": {stamp}, "input_tokens": {10 + number}, "output_tokens": 5}}')
    load = read("\n".join(rows[3:] + rows[:3] if shuffled else rows))
    assert arrivals(load) == RELATIVE
    assert [request.input_tokens for request in load.requests] == [10, 11, 12, 13, 14]


def test_sm7_a_declared_unit_overrides_the_formats() -> None:
    assert arrivals(read(MOONCAKE, unit=TimeUnit.SECONDS)) == [0.0, 0.0, 500.0]
    assert arrivals(read(OWN, unit=TimeUnit.MILLISECONDS)) == [0.0, 0.00025]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ('{"input_tokens": 1, "output_tokens": 1}', "arrival_seconds is missing"),
        ('{"arrival_seconds": null, "input_tokens": 1, "output_tokens": 1}', "arrival_seconds is missing"),
        ('{"arrival_seconds": NaN, "input_tokens": 1, "output_tokens": 1}', "arrival_seconds is NaN"),
        ('{"arrival_seconds": Infinity, "input_tokens": 1, "output_tokens": 1}', "a finite number"),
        ('{"arrival_seconds": "soon", "input_tokens": 1, "output_tokens": 1}', "arrival_seconds is 'soon'"),
        ('{"arrival_seconds": 1700000000, "input_tokens": 1, "output_tokens": 1}', "counts from 1970"),
        ('{"arrival_seconds": 1700000000000, "input_tokens": 1, "output_tokens": 1}', "can't be in seconds"),
        ('{"arrival_milliseconds": 1, "input_tokens": 1, "output_tokens": 1}', "a trace has one unit"),
        ('{"arrival_seconds": 1, "output_tokens": 1}', "input_tokens is missing"),
        ('{"arrival_seconds": 1, "input_tokens": 0, "output_tokens": 1}', "input_tokens is 0, at least 1"),
        ('{"arrival_seconds": 1, "input_tokens": 1.5, "output_tokens": 1}', "input_tokens is 1.5, a whole number"),
        ('{"arrival_seconds": 1, "input_tokens": true, "output_tokens": 1}', "input_tokens is True"),
        ('{"arrival_seconds": 1, "input_tokens": 1, "output_tokens": -3}', "output_tokens is -3"),
        ('{"arrival_seconds": 1, "input_tokens": 600, "output_tokens": 1, "hash_ids": [1]}', "2 blocks of 512"),
        ('{"arrival_seconds": 1, "input_tokens": 1, "output_tokens": 1, "hash_ids": [-1]}', "hash_ids holds -1"),
        ('{"arrival_seconds": 1, "input_tokens": 1, "output_tokens": 1, "hash_ids": 3}', "hash_ids is 3"),
        ('{"arrival_seconds": 1, "input_tokens": 1, "output_tokens": 1, "prompt": 5}', "prompt is neither"),
        ('{"arrival_seconds": 1, "input_tokens": 9, "output_tokens": 1, "prompt": [5]}', "prompt has 1 token ids"),
        ('{"arrival_seconds": 1, "input_tokens": 1, "output_tokens": 1, "block_tokens": 16}', "one block size"),
        ('{"arrival_seconds": 1, "input_tokens": 1, "output_tokens": 1, "colour": 1}', "unknown field 'colour'"),
        ("[1, 2]", "a JSON object is needed"),
        ('{"arrival_seconds": 1', "not a JSON object"),
    ],
)
def test_sm7_a_malformed_line_is_named_with_its_number(line: str, problem: str) -> None:
    with pytest.raises(TraceError) as caught:
        read(OWN + line + "\n")
    assert str(caught.value).startswith("trace, line 3: ")
    assert problem in caught.value.problem
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("2023-11-16 18:15:46.68,374", "2 columns, the header has 3"),
        (",374,44", "TIMESTAMP is missing"),
        ("NaN,374,44", "TIMESTAMP is missing"),
        ("2023-13-16 18:15:46,374,44", "TIMESTAMP is '2023-13-16 18:15:46'"),
        ("yesterday,374,44", "TIMESTAMP is 'yesterday'"),
        ("2023-11-16 18:15:46.68,many,44", "ContextTokens is 'many'"),
        ("2023-11-16 18:15:46.68,374,", "GeneratedTokens is missing"),
        ("2023-11-16 18:15:46.68,374,0", "GeneratedTokens is 0"),
    ],
)
def test_sm7_a_malformed_azure_line_is_named_with_its_number(line: str, problem: str) -> None:
    with pytest.raises(TraceError) as caught:
        read(AZURE + line + "\n")
    assert caught.value.line == 5
    assert problem in caught.value.problem


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ('{"input_length": 1, "output_length": 1, "hash_ids": [1]}', "timestamp is missing"),
        ('{"timestamp": 1, "output_length": 1, "hash_ids": [1]}', "input_length is missing"),
        ('{"timestamp": 1, "input_length": 513, "output_length": 1, "hash_ids": [1]}', "2 blocks of 512"),
    ],
)
def test_sm7_a_malformed_mooncake_line_is_named_with_its_number(line: str, problem: str) -> None:
    with pytest.raises(TraceError) as caught:
        read(MOONCAKE + line + "\n")
    assert caught.value.line == 4
    assert problem in caught.value.problem


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "the trace is empty"),
        ("\n \n", "the trace is empty"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n", "a header and no requests"),
        ("hello\n", "no known trace format"),
        ("version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
    ],
)
def test_pk2_what_is_no_trace_is_named(text: str, problem: str) -> None:
    with pytest.raises(TraceError, match=problem):
        read(text)


def test_a_declared_format_is_not_guessed() -> None:
    with pytest.raises(TraceError, match="the header lacks the column TIMESTAMP"):
        read("time,ContextTokens,GeneratedTokens\n1,2,3\n", form=TraceFormat.AZURE)


@given(
    st.lists(
        st.tuples(st.integers(0, 10**9), st.integers(1, 10**5), st.integers(1, 10**4)),
        min_size=1,
        max_size=30,
    )
)
def test_what_is_written_reads_back(rows: list[tuple[int, int, int]]) -> None:
    times = sorted(row[0] - min(rows)[0] for row in rows)
    requests = tuple(
        TraceRequest(
            arrival_seconds=time / 10**6,
            input_tokens=input_tokens,
            output_tokens=output_tokens,
            hash_ids=tuple(range(-(-input_tokens // 64))) if input_tokens < 1000 else (),
        )
        for time, (_, input_tokens, output_tokens) in zip(times, rows, strict=True)
    )
    load = Workload(name="trace", requests=requests, block_tokens=64)
    assert read_trace(write(load), source="trace") == load


FIGURES = {
    "AzureLLMInferenceTrace_conv.csv": (19366, 3502, 5.5, 1.1, 1155, 1020, 4142, 211, 129, 601, None),
    "AzureLLMInferenceTrace_code.csv": (8819, 3436, 2.6, 13, 2048, 1469, 7436, 28, 13, 251, None),
    "mooncake_conversation_trace.jsonl": (12031, 3537, 3.4, 3.0, 12035, 6909, 85400, 343, 350, 1118, 0.366),
}


@pytest.mark.parametrize("name", sorted(FIGURES))
def test_published_traces_read_with_their_published_figures(name: str, data: Path | None) -> None:
    """Against the real file where DISAGG_DATA has it; otherwise the figures must at least be those of the built-in."""
    from disagg_load.workloads.builtin import builtin_workload

    figures = FIGURES[name]
    if data is None:
        builtin = {"AzureLLMInferenceTrace_conv.csv": "azure-conv", "AzureLLMInferenceTrace_code.csv": "azure-code"}
        found = describe(builtin_workload(f"{builtin.get(name, 'mooncake')}?seconds=3500", seed=1).requests)
        assert found.input_tokens_mean == pytest.approx(figures[4], rel=0.05)
        return
    with (data / "traces" / name).open() as lines:
        found = describe(read_trace(lines, source=name).requests)
    assert found.requests == figures[0]
    assert found.span_seconds == pytest.approx(figures[1], abs=1)
    assert found.requests_per_second == pytest.approx(figures[2], abs=0.05)
    assert found.interarrival_cv == pytest.approx(figures[3], rel=0.02)
    assert found.input_tokens_mean == pytest.approx(figures[4], abs=1)
    assert found.input_tokens_p50 == pytest.approx(figures[5], abs=1)
    assert found.input_tokens_p99 == pytest.approx(figures[6], abs=1)
    assert found.output_tokens_mean == pytest.approx(figures[7], abs=1)
    assert found.output_tokens_p50 == pytest.approx(figures[8], abs=1)
    assert found.output_tokens_p99 == pytest.approx(figures[9], abs=1)
    assert found.infinite_cache_hit_rate == (None if figures[10] is None else pytest.approx(figures[10], abs=0.001))
