"""Files of traffic in, requests and a full account of every row out."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.traffic.detect import FORMATS
from runner.traffic.read import ReadLimits, ReadResult, TrafficError, read_file
from runner.traffic.rows import Row, RowError, Skip
from runner.traffic.store import load_requests, write_requests

DATA = Path(__file__).parent / "data" / "traffic"
SAMPLE = Path(__file__).parents[2] / "webapp" / "samples" / "data" / "demo_sample.jsonl"


def written(path: Path, *rows: Any) -> Path:
    texts = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    path.write_text("\n".join(texts) + "\n", encoding="utf-8")
    return path


def chat(text: str = "Name a colour.", **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], **more}


def rejections(result: ReadResult) -> dict[int, str]:
    return {item.line: item.reason for item in result.rejected}


@pytest.mark.parametrize(
    ("name", "rows", "replayable", "skipped", "rejected"),
    [
        ("01_openai_batch_bom_crlf.jsonl", 5, 4, 1, 0),
        ("03_duplicate_ids.jsonl", 4, 4, 0, 0),
        ("18_vllm_custom_types.jsonl", 10, 6, 0, 5),
    ],
)
def test_case_files_reconcile(
    name: str, rows: int, replayable: int, skipped: int, rejected: int
) -> None:
    result = read_file(DATA / name)
    assert result.rows == rows
    assert len(result.requests) == replayable
    assert result.trace_only == 0
    assert sum(result.skipped.values()) == skipped
    assert result.rejected_count == rejected == len(result.rejected)


def test_batch_bodies_of_each_endpoint() -> None:
    result = read_file(DATA / "01_openai_batch_bom_crlf.jsonl")
    assert result.format == "openai_batch"
    assert result.skipped == {"not_text_generation": 1}
    found = {request.id: request for request in result.requests}
    assert found["r-1"].max_output_tokens == 64
    assert found["r-1"].sampling == {"temperature": 0}
    assert [m["content"] for m in found["r-2"].messages] == [
        "Reply as JSON.",
        "Give the width and height of the red box.",
    ]
    assert found["r-2"].messages[0]["role"] == "system"
    assert found["r-2"].max_output_tokens == 128
    assert found["r-2"].sampling["response_format"]["type"] == "json_schema"
    assert found["r-2"].sampling["response_format"]["json_schema"]["name"] == "box"
    assert found["r-3"].kind == "completion"
    assert found["r-3"].sampling == {"stop": ["\n\n"]}
    assert [part["text"] for part in found["r-5"].messages[0]["content"]] == [
        "Part one.",
        "Part two.",
    ]
    assert found["r-5"].sampling["response_format"] == {"type": "json_object"}
    assert found["r-5"].line == 6, "the blank line 3 is a line, though no row"


def test_duplicate_ids_and_prompts_are_told_with_their_lines() -> None:
    result = read_file(DATA / "03_duplicate_ids.jsonl")
    assert [request.id for request in result.requests] == ["a", "b", "a#2", "b#2"]
    ids, prompts = result.warnings
    assert "lines 3, 4" in ids
    assert prompts.startswith("2 of 4 requests")
    assert result.different_prompts == 3
    assert "lines 1, 3" in prompts


def test_prompts_keep_their_types() -> None:
    result = read_file(DATA / "18_vllm_custom_types.jsonl")
    by_line = {request.line: request for request in result.requests}
    assert by_line[1].prompt == "00042"
    assert by_line[2].prompt == "2031-02-03"
    assert by_line[2].max_output_tokens == 12
    assert by_line[3].prompt == (1, 15043, 3186)
    assert by_line[3].max_output_tokens == 7
    assert [r.prompt for r in result.requests if r.line == 6] == ["first", "second"]
    assert by_line[7].prompt == "18_19"
    assert by_line[7].max_output_tokens is None
    assert sorted(rejections(result)) == [4, 5, 8, 9, 10]
    assert 'no field "prompt"' in rejections(result)[10]


def test_truncated_gzip_is_refused_with_what_could_be_read() -> None:
    with pytest.raises(TrafficError, match=r"ends early \(24 whole lines could be read\)"):
        read_file(DATA / "22_truncated_stream.jsonl.gz")


def test_bundled_sample_has_six_kinds_of_distinct_requests() -> None:
    result = read_file(SAMPLE)
    assert not result.warnings
    assert result.rejected_count == 0
    categories = [request.category for request in result.requests]
    assert len(categories) >= 66
    assert {categories.count(name) for name in set(categories)} == {11}
    assert len(set(categories)) == 6
    heads = {request.messages[0]["content"][:24] for request in result.requests}
    assert len(heads) == len(result.requests), "a shared beginning would warm the prefix cache"
    assert {request.max_output_tokens for request in result.requests} == {64}


def test_gzip_reads_as_plain_even_in_several_members(tmp_path: Path) -> None:
    lines = [json.dumps(chat(f"Question {n}")) + "\n" for n in range(300)]
    plain = tmp_path / "plain"
    plain.write_text("".join(lines))
    packed = tmp_path / "no-telling-name"
    half = [gzip.compress("".join(part).encode()) for part in (lines[:150], lines[150:])]
    packed.write_bytes(b"".join(half))
    assert read_file(packed) == read_file(plain)


def test_gzip_bomb_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bomb.gz"
    path.write_bytes(gzip.compress(b'{"prompt": "' + b"a" * 20_000_000 + b'"}\n'))
    with pytest.raises(TrafficError, match="100 times its size"):
        read_file(path)


def test_damaged_gzip_is_refused(tmp_path: Path) -> None:
    whole = bytearray(gzip.compress(json.dumps(chat()).encode() * 50))
    whole[30:40] = b"\xff" * 10
    path = tmp_path / "damaged.gz"
    path.write_bytes(bytes(whole))
    with pytest.raises(TrafficError, match="damaged"):
        read_file(path)


def test_lines_split_on_newline_only(tmp_path: Path) -> None:
    text = "one\u2028two\u0085three\x0bfour"
    path = tmp_path / "t.jsonl"
    path.write_text(json.dumps(chat(text), ensure_ascii=False) + "\n", encoding="utf-8")
    assert read_file(path).requests[0].messages[0]["content"] == text


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("{broken", "not valid JSON"),
        ('{"messages": [], "x": NaN}', "NaN"),
        ('{"messages": [{"role": "user", "content": "a"}], "top_p": -Infinity}', "Infinity"),
        ('{"messages": [{"role": "user", "content": "a"}], "top_p": 1e999}', "too large"),
        ('{"messages": [{"role": "user", "content": "a"}], "seed": ' + "9" * 5000 + "}", "JSON"),
        ("[" * 100_000, "nested deeper"),
        ('{"messages": ' + "[" * 80 + "]" * 80 + "}", "nested deeper"),
        ("[1, 2]", "one object a line"),
        ({"messages": []}, "at least one message"),
        ({"messages": ["hello"]}, "message 1 is not an object"),
        ({"messages": [{"role": "narrator", "content": "a"}]}, "message 1 has no role"),
        ({"messages": [{"role": "user", "content": "  "}]}, "no message holds any text"),
        ({"messages": [{"role": "user", "content": 5}]}, "neither text nor a list"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
            "text-only run",
        ),
        (chat(max_tokens=0), "at least 1"),
        (chat(max_tokens=12.5), "whole number"),
        (chat(max_tokens="many"), "expected a number"),
        (chat(temperature=True), "finite number"),
        (chat(tools="none"), "unexpected type"),
    ],
)
def test_bad_rows_are_named_by_line_and_reason_and_never_quoted(
    tmp_path: Path, row: Any, reason: str
) -> None:
    path = written(tmp_path / "t.jsonl", chat("First."), row, chat("Third."))
    result = read_file(path)
    assert [request.line for request in result.requests] == [1, 3]
    assert list(rejections(result)) == [2]
    assert reason in rejections(result)[2]


def test_line_over_the_limit_is_one_rejected_row(tmp_path: Path) -> None:
    path = written(tmp_path / "t.jsonl", chat("a"), chat("b" * 3_000_000), chat("c"))
    result = read_file(path, limits=ReadLimits(max_line_bytes=1000))
    assert [request.line for request in result.requests] == [1, 3]
    assert rejections(result) == {2: "longer than 1,000 bytes"}


def test_invalid_utf8_is_one_rejected_row(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_bytes(json.dumps(chat()).encode() + b'\n{"messages": "\xff\xfe"}\n')
    assert rejections(read_file(path)) == {2: "not valid UTF-8"}


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "the file is empty"),
        (b"\n \n\r\n", "the file is empty"),
        (b"hello\nworld\n", "line 1: no row can be used; the first one: not valid JSON"),
        (b'[\n{"messages": 1}\n]\n', "line 1: no row can be used; the first one: JSON that spans"),
        (b'{"a": 1}\n', "line 1: unknown format"),
        (b"PK\x03\x04rest", "a zip or Excel file"),
        (b"PAR1rest", "a Parquet file"),
        ('{"prompt": "a"}'.encode("utf-16"), "UTF-16"),
        (
            b'{"custom_id": "x", "url": "/v1/embeddings", "body": {}}\n',
            "no row can be replayed: 1 not_text_generation",
        ),
        (b'{"custom_id": "x", "response": {}}\n', "batch result"),
    ],
)
def test_file_without_a_usable_row_is_refused(tmp_path: Path, content: bytes, reason: str) -> None:
    path = tmp_path / "t.jsonl"
    path.write_bytes(content)
    with pytest.raises(TrafficError) as caught:
        read_file(path)
    assert reason in str(caught.value)


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        (ReadLimits(max_rows=2), "more than 2 rows"),
        (ReadLimits(max_file_bytes=10), "larger than"),
        (ReadLimits(max_text_bytes=10), "larger than"),
    ],
)
def test_file_over_a_limit_is_refused(tmp_path: Path, limits: ReadLimits, reason: str) -> None:
    path = written(tmp_path / "t.jsonl", chat("a"), chat("b"), chat("c"))
    with pytest.raises(TrafficError, match=reason):
        read_file(path, limits=limits)


def test_majority_of_rows_decides_the_format(tmp_path: Path) -> None:
    path = written(tmp_path / "t.jsonl", {"prompt": "x"}, chat("a"), chat("b"))
    result = read_file(path)
    assert result.format == "openai_chat"
    assert "looks like Prompts" in rejections(result)[1]


def test_format_does_not_hang_on_key_order(tmp_path: Path) -> None:
    row = {"category": "x", "prompt": "Hello", "id": 7, "max_tokens": 5}
    rng = random.Random(1)
    for _ in range(5):
        items = list(row.items())
        rng.shuffle(items)
        result = read_file(written(tmp_path / "t.csv", dict(items)))
        assert (result.format, result.requests[0].id) == ("prompt", "7")


def test_category_from_the_row_or_its_metadata(tmp_path: Path) -> None:
    batch = {"custom_id": "1", "url": "/v1/chat/completions"}
    path = written(
        tmp_path / "t.jsonl",
        {**batch, "custom_id": "1", "body": chat(metadata={"category": "in the body"})},
        {**batch, "custom_id": "2", "category": "beside it", "body": chat("b")},
        {**batch, "custom_id": "3", "body": chat("c")},
    )
    found = [request.category for request in read_file(path).requests]
    assert found == ["in the body", "beside it", None]


def test_fields_are_sent_on_or_told(tmp_path: Path) -> None:
    row = chat(
        temperature="0.5", top_p=None, n=3, logit_bias={"5": -1}, min_p=0.1,
        user="somebody", stream=True, unheard_of=1, max_tokens=9, max_completion_tokens=4,
    )  # fmt: skip
    result = read_file(written(tmp_path / "t.jsonl", row))
    request = result.requests[0]
    assert request.sampling == {"temperature": 0.5, "logit_bias": {"5": -1}, "min_p": 0.1}
    assert request.max_output_tokens == 4
    warnings = " | ".join(result.warnings)
    assert "numbers written as text were read as numbers: line 1" in warnings
    assert "one answer is measured: line 1" in warnings
    assert '"unheard_of"' in warnings
    assert "user" not in warnings


def test_half_characters_are_replaced_with_a_warning(tmp_path: Path) -> None:
    path = written(tmp_path / "t.jsonl", '{"prompt": "a\\ud800b", "id": "x\\u0000y"}')
    result = read_file(path)
    assert result.requests[0].prompt == "a\ufffdb"
    assert result.requests[0].id == "xy"
    assert any("half characters" in warning for warning in result.warnings)


def test_named_rejections_are_bounded_and_counted(tmp_path: Path) -> None:
    path = written(tmp_path / "t.jsonl", *["{bad"] * 400, chat())
    result = read_file(path)
    assert result.rejected_count == 400
    assert [item.line for item in result.rejected] == list(range(1, 51))


def test_batch_of_tools_and_multi_message_responses(tmp_path: Path) -> None:
    body = {
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "What time is it?"}]},
            {"role": "assistant", "content": "Where?"},
            {"role": "user", "content": "Here."},
        ],
        "tools": [{"type": "function", "name": "clock", "parameters": {"type": "object"}}],
        "reasoning": {"effort": "low"},
    }
    history = {"input": "And then?", "previous_response_id": "resp_1"}
    path = written(
        tmp_path / "t.jsonl",
        {"custom_id": "a", "url": "/v1/responses", "body": body},
        {"custom_id": "b", "url": "/v1/responses", "body": history},
    )
    result = read_file(path)
    request = result.requests[0]
    assert [message["role"] for message in request.messages] == ["user", "assistant", "user"]
    assert request.messages[0]["content"] == [{"type": "text", "text": "What time is it?"}]
    assert request.sampling["tools"][0]["function"]["name"] == "clock"
    assert request.sampling["reasoning_effort"] == "low"
    assert "on the server it was sent to" in rejections(result)[2]


def test_store_gives_back_the_same_requests_for_the_owner_only(tmp_path: Path) -> None:
    for name in ("01_openai_batch_bom_crlf.jsonl", "18_vllm_custom_types.jsonl"):
        requests = read_file(DATA / name).requests
        write_requests(tmp_path / "stored", requests)
        assert load_requests(tmp_path / "stored") == requests
    assert (tmp_path / "stored").stat().st_mode & 0o077 == 0
    assert [item.name for item in tmp_path.iterdir()] == ["stored"]


def test_answers_once_given_are_not_kept(tmp_path: Path) -> None:
    answer = "The answer is blue."
    rows = ({"prompt": "Name a colour.", name: answer} for name in ("output", "completion"))
    path = written(tmp_path / "t.jsonl", *rows, {"prompt": "b", "expected_output": answer})
    write_requests(tmp_path / "stored", read_file(path).requests)
    assert "blue" not in (tmp_path / "stored").read_text()


def test_what_an_older_version_stored_is_read(tmp_path: Path) -> None:
    requests = read_file(DATA / "18_vllm_custom_types.jsonl").requests
    path = tmp_path / "stored"
    write_requests(path, requests)
    rows = [json.loads(line) | {"expected_output": None} for line in path.read_text().splitlines()]
    assert load_requests(written(path, *rows)) == requests


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)
KEYS = st.sampled_from(
    ["messages", "prompt", "custom_id", "body", "url", "max_tokens", "id", "category", "stop"]
)


@settings(max_examples=60)
@given(
    rows=st.lists(st.dictionaries(KEYS, JSON_VALUES, max_size=5), min_size=1, max_size=6),
    tail=st.binary(max_size=20),
)
def test_every_row_ends_in_exactly_one_bucket(
    tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, Any]], tail: bytes
) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzz.jsonl"
    path.write_bytes("\n".join(json.dumps(row) for row in rows).encode() + b"\n" + tail)
    try:
        result = read_file(path)
    except TrafficError:
        return
    used = {request.line for request in result.requests}
    buckets = len(used) + sum(result.skipped.values()) + result.rejected_count
    assert buckets == result.rows
    assert len({request.id for request in result.requests}) == len(result.requests)


@pytest.mark.parametrize(
    "row",
    [
        '{"messages": [{"role": ["user"], "content": "hi"}]}',
        '{"messages": [{"role": {"a": 1}, "content": "hi"}]}',
        '{"prompt": "a", "seed": 1' + "0" * 400 + "}",
        '{"prompt": "a", "n": 1' + "0" * 400 + "}",
        '{"prompt": "a", "max_tokens": 1' + "0" * 400 + "}",
    ],
)
def test_an_odd_value_costs_its_row_only(tmp_path: Path, row: str) -> None:
    path = tmp_path / "odd.jsonl"
    good = '{"prompt": "hello"}'
    if "messages" in row:
        good = '{"messages": [{"role": "user", "content": "hello"}]}'
    path.write_text(f"{good}\n{row}\n")
    result = read_file(path)
    assert (len(result.requests), result.rejected_count) == (1, 1)


ODD = JSON_VALUES | st.sampled_from(
    [10**400, -(10**400), "1" * 400, "\u00b2", "1e999", "nan", [[]]]
)


def either(*good: Any) -> st.SearchStrategy[Any]:
    """What belongs there, or anything else."""
    return st.sampled_from(good) | ODD


def fields(**known: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=known)


PARTS = fields(type=either("text", "input_text", "refusal"), text=either("a"), refusal=either("b"))
MESSAGES = st.lists(
    fields(
        type=either("message"),
        role=either("user", "assistant"),
        content=either("a") | st.lists(PARTS),
    )
    | ODD,
    max_size=3,
)
TOOLS = st.lists(fields(type=either("function"), name=either("f")) | ODD, max_size=2)
TEXT_FORMAT = fields(type=either("json_schema", "json_object"), name=either("f"))
BODY = {
    "messages": MESSAGES | ODD,
    "prompt": either("a", ["a", [1, 2]]),
    "input": either("a") | MESSAGES,
    "text": fields(format=TEXT_FORMAT | ODD) | ODD,
    "reasoning": fields(effort=either("low")) | ODD,
    "tools": TOOLS | ODD,
    "metadata": fields(category=ODD) | ODD,
    **dict.fromkeys(("id", "request_id", "category", "stop", "logit_bias", "output"), ODD),
    **dict.fromkeys(("temperature", "top_k", "seed", "n", "instructions", "unheard_of"), ODD),
    **dict.fromkeys(("max_tokens", "max_output_tokens", "output_tokens"), ODD),
}
URLS = ("/v1/chat/completions", "/v1/completions", "/v1/responses?a", "/v1/embeddings", "")
ROWS = fields(**BODY) | fields(
    custom_id=ODD, url=either(*URLS), body=fields(**BODY) | ODD, category=ODD
)


@settings(max_examples=400, deadline=None)
@given(data=ROWS | st.dictionaries(st.text(max_size=5), ODD))
def test_any_object_gives_requests_or_the_reason_why_not(data: dict[str, Any]) -> None:
    for known in FORMATS:
        if not known.matches(data):
            continue
        try:
            outcome = known.read(Row(1, data))
        except RowError:
            continue
        for request in [] if isinstance(outcome, Skip) else outcome:
            assert json.dumps(request.body("m"))
            assert request.prompt_key
