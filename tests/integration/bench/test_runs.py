"""`gateway bench run`: a table, all records, and a verdict that says what was wrong with the run itself."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import bench_kit as kit
from bench_stage import KEYS, PATIENT, Model, Records, bench, contents, run_words


async def test_a_run_leaves_a_table_and_all_its_records(folder: Path, tmp_path: Path) -> None:
    pages = {"/v1/models": b"{}", "/api/state?promises=off": b'{"policy": {"name": "mine", "sha256": "p0"}}'}
    async with kit.scripted(Model(folder), pages=pages) as server:
        words = run_words(server.url, folder, tmp_path, warmup=0.1, ops_url=server.url)
        words += ["--credential", "short=KEY_SHORT", "long=KEY_LONG", "--priority", "short=0", "long=10"]
        words += ["--goodput", "short:ttft:60000", "long:ttft:60000", "--metadata", "gpu=none", "image_digest=sha256:1"]
        words += PATIENT
        code, out, err = await bench(*words)
        asked = server.asked
    assert code == 0, out + err
    assert "| short |" in out and "VALID" in out
    records = Records(tmp_path)
    assert {path.name for path in contents(records.path)} == {
        "run.json",
        "requests.jsonl",
        "measurements.json",
        "verdict.json",
        "vllm_bench.json",
    }
    assert len(asked) == len(records.rows) == 20
    assert {(row["outcome"], row["output_tokens"], row["gateway_queue_ms"]) for row in records.rows} == {
        ("completed", 4, 5)
    }
    assert all(row["prompt_tokens"] == row["prompt_tokens_planned"] for row in records.rows)
    measured = records.json("measurements")
    warm = sum(measured["warmup"]["outcomes"].values())
    assert warm == sum(row["phase"] == "warmup" for row in records.rows) > 0
    assert warm + measured["classes"]["all"]["offered"] == 20
    assert measured["classes"]["short"]["good_share"] == 1.0
    assert records.json("verdict")["verdict"] == "VALID"
    run = records.json("run")
    assert (run["metadata"]["gpu"], run["warmup_seconds"], run["load"]) == ("none", 0.1, "open loop")
    assert (run["policy_sha256"], run["image_digest"]) == ("p0", "sha256:1")
    assert run["tokenizer_revision"] == f"sha256:{run['tokenizer_sha256']}"
    assert run["hardware"]["cores"] >= 1 and "model_revision" not in run and "engine_version" not in run
    model = Model(folder)
    for request in asked:
        long = model.is_long(request)
        assert request.headers["authorization"] == f"Bearer {KEYS['KEY_LONG' if long else 'KEY_SHORT']}"
        assert request.headers["x-vllm-priority"] == ("10" if long else "0")
        assert request.headers["x-request-id"].startswith(run["run_id"])
    assert len({request.headers["x-request-id"] for request in asked}) == 20
    assert len({request.json["messages"][0]["content"] for request in asked}) == 20
    assert {request.json["cache_salt"] for request in asked} == {run["run_id"]}
    written = "".join(path.read_text() for path in contents(records.path))
    assert not any(key in out + err + written for key in KEYS.values())


async def test_a_run_during_which_the_policy_was_replaced_is_void(folder: Path, tmp_path: Path) -> None:
    model = Model(folder)
    pages = {"/v1/models": b"{}", "/api/state?promises=off": b'{"policy": {"sha256": "p0"}}'}

    async def script(asked: Any, reply: Any) -> None:
        pages["/api/state?promises=off"] = b'{"policy": {"sha256": "p1"}}'
        await model(asked, reply)

    async with kit.scripted(script, pages=pages) as server:
        words = run_words(server.url, folder, tmp_path, ops_url=server.url, num_prompts=4)
        words += ["--metadata", "hardware_id=hw-1"]
        code, out, err = await bench(*words, *PATIENT)
    assert code == 4, out + err
    assert Records(tmp_path).json("verdict")["reasons"] == ["the gateway's policy was replaced during the run"]
    run = Records(tmp_path).json("run")
    assert run["hardware_id"] == "hw-1" and "hardware" not in run, "its port may be another machine's, forwarded"


async def test_refused_requests_stay_in_the_table_and_in_the_denominator(folder: Path, tmp_path: Path) -> None:
    model = Model(folder)

    async def script(asked: Any, reply: Any) -> None:
        if model.is_long(asked):
            await reply.whole(429, b"{}", {"x-gateway-reason": "queue_full", "Retry-After": "1"})
        else:
            await model(asked, reply)

    async with kit.scripted(script) as server:
        words = run_words(server.url, folder, tmp_path)
        code, out, err = await bench(*words, "--goodput", "short:ttft:60000", "long:ttft:60000", *PATIENT)
        assert len(server.asked) == 20
    assert code == 0, out + err
    assert "refused: queue_full: 4" in out
    long = Records(tmp_path).json("measurements")["classes"]["long"]
    assert (long["offered"], long["outcomes"]["refused"], long["good_share"]) == (4, 4, 0.0)
    assert long["ttft_ms_over_offered"]["p50"]["value"] == "inf"
    assert "ttft_ms" not in long


async def test_a_run_without_the_key_that_is_wanted_is_invalid_with_4(folder: Path, tmp_path: Path) -> None:
    async def script(asked: Any, reply: Any) -> None:
        await reply.whole(401, b"{}", {"x-gateway-reason": "unauthenticated"})

    async with kit.scripted(script) as server:
        code, out, err = await bench(*run_words(server.url, folder, tmp_path), *PATIENT)
    assert code == 4, out + err
    assert "INVALID: 20 requests were answered 401" in out
    assert "--credential ENV" in out
    assert Records(tmp_path).json("verdict")["verdict"] == "INVALID"


async def test_a_server_that_never_answers_some_ends_at_the_deadline_with_3(folder: Path, tmp_path: Path) -> None:
    model = Model(folder)

    async def script(asked: Any, reply: Any) -> None:
        if model.is_long(asked):
            await reply.client_left()
        else:
            await model(asked, reply)

    async with kit.scripted(script) as server:
        words = run_words(server.url, folder, tmp_path, drain_deadline=2)
        code, out, err = await bench(*words, *PATIENT)
    assert code == 3, out + err
    records = Records(tmp_path)
    assert (records.outcomes("short"), records.outcomes("long")) == ({"completed"}, {"unfinished"})
    assert len(records.rows) == 20


async def test_a_client_that_was_late_makes_the_run_invalid_with_4(folder: Path, tmp_path: Path) -> None:
    async with kit.scripted(Model(folder)) as server:
        words = run_words(server.url, folder, tmp_path)
        code, out, _ = await bench(*words, "--lag-tolerance-ms", "0.000001")
    assert code == 4
    assert "INVALID: client lag" in out
    assert Records(tmp_path).json("verdict")["verdict"] == "INVALID"


async def test_lengths_that_the_server_counts_otherwise_make_the_run_invalid(folder: Path, tmp_path: Path) -> None:
    async def script(asked: Any, reply: Any) -> None:
        await reply.answer(7, ["a"] * 4)

    async with kit.scripted(script) as server:
        code, out, _ = await bench(*run_words(server.url, folder, tmp_path), *PATIENT)
    assert code == 4
    assert "20 prompts did not have the asked length" in out


async def test_a_target_that_is_not_there_ends_with_1_and_leaves_nothing(folder: Path, tmp_path: Path) -> None:
    async with kit.scripted(Model(folder)) as server:
        url = server.url
    code, _, err = await bench(*run_words(url, folder, tmp_path))
    assert code == 1
    assert f"nothing answers at {url}" in err
    assert contents(tmp_path) == []


async def test_a_replay_sends_the_saved_trace_and_leaves_when_it_says(folder: Path, tmp_path: Path) -> None:
    trace = tmp_path / "t.jsonl"
    rows = [
        {"format": "gateway-bench-trace", "version": 1, "span_s": 0.5, "origin": {"label": "by hand"}},
        {"arrival_ms": 0.0, "class": "agent", "prompt_tokens": 50, "output_tokens": 2},
        {"arrival_ms": 10.0, "class": "short", "prompt_tokens": 40, "output_tokens": 3, "cancel_after_ms": 100},
    ]
    trace.write_text("".join(json.dumps(row) + "\n" for row in rows))
    model = Model(folder)
    left = asyncio.Event()

    async def script(asked: Any, reply: Any) -> None:
        if asked.json["max_tokens"] == 3:
            await reply.client_left()
            left.set()
        else:
            await model(asked, reply)

    async with kit.scripted(script) as server:
        words = ["--base-url", server.url, "--model", "tiny", "--tokenizer", str(folder), "--trace", str(trace)]
        code, out, err = await bench("run", *words, "--result-dir", str(tmp_path / "runs"), *PATIENT)
        await left.wait()
    assert code == 0, out + err
    records = Records(tmp_path / "runs")
    assert [(row["class"], row["outcome"]) for row in records.rows] == [("agent", "completed"), ("short", "cancelled")]
    assert records.json("run")["trace_origin"] == {"label": "by hand"}


async def test_answers_that_are_no_streams_are_in_no_figure_of_streams(folder: Path, tmp_path: Path) -> None:
    model = Model(folder)
    answered = 0

    async def script(asked: Any, reply: Any) -> None:
        nonlocal answered
        answered += 1
        if answered % 2:
            await model(asked, reply)
        else:
            await reply.whole(200, b'{"choices": [{"message": {"content": "a"}, "finish_reason": "stop"}]}')

    async with kit.scripted(script) as server:
        code, out, err = await bench(*run_words(server.url, folder, tmp_path), *PATIENT)
    assert code == 0, out + err
    records = Records(tmp_path)
    whole = [row for row in records.rows if row.get("reason") == "not_a_stream"]
    assert len(whole) == 10 and all(row["outcome"] == "failed" and "ttft_ms" not in row for row in whole)
    measured = records.json("measurements")["classes"]["all"]
    assert [measured[name]["count"] for name in ("ttft_ms", "longest_stall_ms", "e2e_ms")] == [10, 10, 10]
