"""The fast way to read a trace: it reads what the careful way reads, and leaves everything else to it."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from disagg_load.columns import Columns
from disagg_load.errors import TraceError
from disagg_load.requests import Workload
from disagg_load.traces.columns import read_columns, read_workload
from disagg_load.traces.own import write
from disagg_load.traces.plain import read_plain
from disagg_load.traces.reader import TimeUnit, TraceFormat, read_trace
from disagg_load.workloads.builtin import builtin_workload

HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
AZURE = HEADER + "2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,396,109\n2023-11-16 18:15:46,879,55\n"
MOONCAKE = """{"timestamp": 3500, "input_length": 1100, "output_length": 9, "hash_ids": [0, 1, 2]}
{"timestamp": 3000, "input_length": 600, "output_length": 5, "hash_ids": [0, 1], "turn": 7}
{"timestamp": 3000, "input_length": 512, "output_length": 7}
"""
OWN = """{"arrival_seconds": 0.75, "input_tokens": 20, "output_tokens": 2}
{"arrival_seconds": 0, "input_tokens": 10, "output_tokens": 1}
"""
PLAIN = {
    "azure": AZURE,
    "azure of 2024": HEADER + "2024-05-10 00:00:00.009930+00:00,2162,8\n2024-05-10 00:00:01.1+00:00,2,9\n",
    "mooncake": MOONCAKE,
    "own": OWN,
    "no newline at the end": OWN[:-1],
    "windows": MOONCAKE.replace("\n", "\r\n"),
}


def plain(text: str, **options: object) -> Columns | None:
    return read_plain(text.encode(), source="trace", **({"form": None, "unit": None} | options))  # type: ignore[arg-type]


def same(left: Columns, right: Columns) -> bool:
    return (
        left.workload() == right.workload()
        and (left.hash_ids is None) == (right.hash_ids is None)
        and left.block_tokens == right.block_tokens
    )


def outcome(read: Callable[[], Workload]) -> Workload | str:
    """What was read, or the sentence that says why not."""
    try:
        return read()
    except TraceError as error:
        return str(error)


def without_prompts(load: Workload) -> Workload:
    return replace(load, requests=tuple(replace(request, prompt=None) for request in load.requests))


@pytest.mark.parametrize("name", PLAIN)
def test_sm7_plain_traces_read_as_the_careful_reader_reads_them(name: str) -> None:
    text = PLAIN[name]
    found = plain(text)
    careful = read_trace(text.splitlines(keepends=True), source="trace")
    assert found is not None
    assert same(found, Columns.of(careful))
    assert found.workload() == read_workload(text.encode(), source="trace") == careful
    assert len(read_columns(text.encode(), source="trace", limit=1)) == 1


@pytest.mark.parametrize(
    "text",
    [
        "",
        "hello\n",
        HEADER,
        "GeneratedTokens,TIMESTAMP,ContextTokens\n8,2024-05-10 00:00:00,2162\n",
        AZURE + "2023-11-16 18:15:46.68,374\n",
        AZURE + "2023-11-16 18:15:46.68,374,0\n",
        AZURE + "2023-13-16 18:15:46.68,374,1\n",
        AZURE + "2023-11-16 18:15:46.68+02:00,374,1\n",
        AZURE + "1970-01-01 00:00:00,374,1\n",
        AZURE + "\n",
        MOONCAKE + '{"timestamp": 1.5, "input_length": 1, "output_length": 1}\n',
        MOONCAKE + '{"timestamp": 1, "input_length": "1", "output_length": 1}\n',
        MOONCAKE + '{"timestamp": 1, "input_length": 0, "output_length": 1}\n',
        MOONCAKE + '{"timestamp": 1, "input_length": 513, "output_length": 1, "hash_ids": [1]}\n',
        MOONCAKE + '{"timestamp": 1, "input_length": 1, "output_length": 1, "hash_ids": [-1]}\n',
        MOONCAKE + '{"timestamp": 1, "input_length": 1, "output_length": 1} {"timestamp": 1}\n',
        MOONCAKE + '{"timestamp": 1,\n "input_length": 1, "output_length": 1}\n',
        MOONCAKE + '{"timestamp": 1' + 400 * "0" + ', "input_length": 1, "output_length": 1}\n',
        MOONCAKE + '{"timestamp": null, "input_length": 1, "output_length": 1}\n',
        MOONCAKE + '{"timestamp": NaN, "input_length": 1, "output_length": 1}\n',
        MOONCAKE + '{"timestamp": 1, "input_length": 3000000000, "output_length": 1}\n',
        OWN + '{"arrival_seconds": -1, "input_tokens": 1, "output_tokens": 1}\n',
        OWN + '{"arrival_seconds": 1, "input_tokens": 1, "output_tokens": 1, "prompt": "hé"}\n',
        OWN + '{"arrival_seconds": 1, "input_tokens": 1, "output_tokens": 1, "block_tokens": 16}\n',
        OWN + '{"arrival_seconds": 1700000000, "input_tokens": 1, "output_tokens": 1}\n',
        OWN.replace("arrival_seconds", "arrival_milliseconds"),
        "\ufeff" + OWN,
        OWN.replace("\n", "\r"),
    ],
)
def test_sm7_everything_unusual_goes_to_the_careful_reader(text: str) -> None:
    assert plain(text) is None
    expected = outcome(lambda: read_trace(text.replace("\r", "\n").splitlines(keepends=True), source="trace"))
    assert outcome(lambda: read_workload(text.encode(), source="trace")) == expected
    columns = outcome(lambda: read_columns(text.encode(), source="trace").workload())
    assert columns == (without_prompts(expected) if isinstance(expected, Workload) else expected)


def test_what_is_no_text_is_named() -> None:
    with pytest.raises(TraceError, match="trace: not a text file"):
        read_columns(b"\xff\xfe{", source="trace")


def test_sm7_a_declared_unit_and_format_count_for_columns_too() -> None:
    seconds = plain(MOONCAKE, unit=TimeUnit.SECONDS)
    assert seconds is not None
    assert seconds.span_seconds == 500
    assert plain(AZURE, unit=TimeUnit.MILLISECONDS) is None
    assert plain(OWN, unit=TimeUnit.MILLISECONDS) is None
    assert plain(MOONCAKE.replace("3000", "1700000000000"), unit=TimeUnit.SECONDS) is None
    with pytest.raises(TraceError, match="declare the unit"):
        read_columns(MOONCAKE.replace("3000", "1700000000000").encode(), source="trace", unit=TimeUnit.SECONDS)
    with pytest.raises(TraceError, match="the header lacks"):
        read_columns(OWN.encode(), source="trace", form=TraceFormat.AZURE)


TIMES = st.one_of(st.integers(0, 2**53 - 1), st.integers(1_700_000_000_000, 1_700_000_100_000))


@given(st.lists(st.tuples(TIMES, st.integers(1, 2**31 - 1), st.booleans()), min_size=1, max_size=20))
def test_sm7_random_mooncake_lines_read_the_same(rows: list[tuple[int, int, bool]]) -> None:
    text = "".join(
        f'{{"timestamp": {time}, "input_length": {tokens if not shared else tokens % 5000 + 1}, "output_length": 1'
        + (f', "hash_ids": {list(range(-(-(tokens % 5000 + 1) // 512)))}' if shared else "")
        + "}\n"
        for time, tokens, shared in rows
    )
    found = plain(text)
    assert found is not None
    assert same(found, Columns.of(read_trace(text.splitlines(keepends=True), source="trace")))


@given(st.lists(st.floats(0, 1e7), min_size=1, max_size=20))
@example([5e-324, 0.1, 1e-7, 123456.78901234567])
def test_sm7_random_own_lines_read_the_same(times: list[float]) -> None:
    rows = [0.0, *times]
    text = "".join(f'{{"arrival_seconds": {time!r}, "input_tokens": 3, "output_tokens": 1}}\n' for time in rows)
    found = plain(text)
    assert found is not None
    assert same(found, Columns.of(read_trace(text.splitlines(keepends=True), source="trace")))


@given(st.lists(st.tuples(st.integers(0, 86399), st.integers(0, 10**7 - 1)), min_size=1, max_size=20))
def test_sm7_random_azure_lines_read_the_same(rows: list[tuple[int, int]]) -> None:
    text = HEADER + "".join(
        f"2023-11-16 {second // 3600:02}:{second // 60 % 60:02}:{second % 60:02}.{ticks:07},{ticks + 1},1\n"
        for second, ticks in rows
    )
    found = plain(text)
    assert found is not None
    assert same(found, Columns.of(read_trace(text.splitlines(keepends=True), source="trace")))


@pytest.mark.parametrize("name", ["azure-conv", "mooncake"])
def test_what_is_written_is_plain(name: str) -> None:
    load = builtin_workload(f"{name}?requests=200", seed=3)
    found = plain("".join(write(load)))
    assert found is not None
    assert found.workload().requests == load.requests


def test_the_published_traces_are_plain(data: Path | None) -> None:
    """With DISAGG_DATA the real files, read both ways; without, lines of the same shapes."""
    texts = [AZURE.encode(), MOONCAKE.encode()]
    if data is not None:
        texts += [
            (data / "traces" / name).read_bytes()
            for name in ("AzureLLMInferenceTrace_code.csv", "mooncake_conversation_trace.jsonl")
        ]
    for text in texts:
        found = read_plain(text, source="trace", form=None, unit=None)
        assert found is not None
        assert found.workload() == read_trace(text.decode().splitlines(keepends=True), source="trace")
