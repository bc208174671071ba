"""The bench as a user starts it, in its own process, against a server that answers as the test says."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from bench import local_gateway
from bench.corpus import tokenizer
from bench.corpus.tokenizer import PromptForm
from gateway.testing.certificate import certificate

ROOT = Path(__file__).parents[2]
KEYS = {"KEY_SHORT": "gw-short-0123456789", "KEY_LONG": "gw-long-0123456789"}
# The machine that runs the tests may be busy: only the test about lag judges it.
PATIENT = ["--lag-tolerance-ms", "60000"]


def _kit() -> Any:
    path = ROOT / "tests/unit/bench/kit.py"
    if "bench_kit" not in sys.modules:
        spec = importlib.util.spec_from_file_location("bench_kit", path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules["bench_kit"] = module
        spec.loader.exec_module(module)
    return sys.modules["bench_kit"]


kit = _kit()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return kit.a_tokenizer(tmp_path_factory.mktemp("tokenizer"))


class Model:
    """Answers every chat with the asked number of tokens and the count that the tokenizer gives."""

    def __init__(self, folder: Path) -> None:
        self._count = tokenizer.load(folder).count_for(PromptForm.CHAT)

    def prompt_tokens(self, asked: Any) -> int:
        return self._count(asked.json["messages"][0]["content"])

    async def __call__(self, asked: Any, reply: Any) -> None:
        texts = ["a"] * asked.json["max_tokens"]
        await reply.answer(self.prompt_tokens(asked), texts, {"x-gateway-queue-ms": "5"})

    def is_long(self, asked: Any) -> bool:
        return self.prompt_tokens(asked) > 60


def contents(folder: Path) -> list[Path]:
    return sorted(folder.iterdir())


async def started(*words: str, **environment: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "bench",
        *words,
        cwd=ROOT,
        env={**os.environ, **KEYS, **environment},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        # A suite that runs in the background may have inherited an ignored interrupt.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )


async def bench(*words: str, **environment: str) -> tuple[int, str, str]:
    process = await started(*words, **environment)
    out, err = await process.communicate()
    return process.returncode or 0, out.decode(), err.decode()


def run_words(url: str, folder: Path, results: Path, **changes: Any) -> list[str]:
    options = {
        "base-url": url,
        "model": "tiny",
        "tokenizer": folder,
        "request-rate": 40,
        "num-prompts": 20,
        "short-tokens": 40,
        "long-tokens": 80,
        "output-tokens": 4,
        "drain-deadline": 20,
        "result-dir": results,
    } | {name.replace("_", "-"): value for name, value in changes.items()}
    return [
        "run",
        *(str(word) for name, value in options.items() if value is not None for word in (f"--{name}", value)),
    ]


class Records:
    """The one run that a result folder holds."""

    def __init__(self, results: Path) -> None:
        (self.path,) = results.iterdir()
        self.rows = [json.loads(line) for line in (self.path / "requests.jsonl").read_text().splitlines()]

    def json(self, name: str) -> Any:
        return json.loads((self.path / f"{name}.json").read_text())

    def outcomes(self, class_name: str) -> set[str]:
        return {row["outcome"] for row in self.rows if row["class"] == class_name}


async def test_a_run_leaves_a_table_and_all_its_records(folder: Path, tmp_path: Path) -> None:
    async with kit.scripted(Model(folder)) as server:
        words = run_words(server.url, folder, tmp_path, warmup=0.1)
        words += ["--credential", "short=KEY_SHORT", "long=KEY_LONG", "--priority", "short=0", "long=10"]
        words += ["--goodput", "short:ttft:60000", "long:ttft:60000", "--metadata", "gpu=none", *PATIENT]
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
    assert (run["metadata"], run["warmup_seconds"], run["load"]) == ({"gpu": "none"}, 0.1, "open loop")
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


async def test_an_interrupted_run_keeps_its_records_and_is_invalid(folder: Path, tmp_path: Path) -> None:
    arrived = asyncio.Event()

    async def script(asked: Any, reply: Any) -> None:
        arrived.set()
        await reply.client_left()

    async with kit.scripted(script) as server:
        process = await started(*run_words(server.url, folder, tmp_path, request_rate=1), *PATIENT)
        await arrived.wait()
        process.send_signal(signal.SIGINT)
        out, err = await process.communicate()
    assert process.returncode == 4, err
    assert b"interrupted before its end" in out
    records = Records(tmp_path)
    assert len(records.rows) == 20
    assert {row["outcome"] for row in records.rows} == {"unfinished", "unsent"}


def metrics(*, started_at: float, prompt_tokens: int = 0) -> bytes:
    lines = [
        f"process_start_time_seconds {started_at}",
        "vllm:num_requests_running 0",
        "vllm:num_requests_waiting 0",
        f"vllm:prompt_tokens_total {prompt_tokens}",
    ]
    return ("\n".join(lines) + "\n").encode()


@pytest.mark.parametrize("restarts", [False, True])
async def test_counters_of_the_engine_are_a_difference_or_unknown(folder: Path, tmp_path: Path, restarts: bool) -> None:
    model = Model(folder)

    async def script(asked: Any, reply: Any) -> None:
        await server.sampled.wait()
        server.pages["/metrics"] = metrics(started_at=2.0 if restarts else 1.0, prompt_tokens=500)
        await model(asked, reply)

    pages = {"/v1/models": b"{}", "/metrics": metrics(started_at=1.0), "/version": b'{"version": "0.32.0"}'}
    async with kit.scripted(script, pages=pages) as server:
        code, out, _ = await bench(*run_words(server.url, folder, tmp_path, engine_url=server.url), *PATIENT)
    records = Records(tmp_path)
    assert records.json("run")["engine_version"] == "0.32.0"
    delta = records.json("measurements")["engine"]["delta"]
    assert delta == {"prompt_tokens": "unknown" if restarts else 500.0}
    during = records.json("measurements")["engine"]["during"]
    lines = [json.loads(text) for text in (records.path / "engine.jsonl").read_text().splitlines()]
    assert during["samples"] == len([each for each in lines if "unreadable" not in each]) >= 1
    assert {"gpu_memory_bytes", "gpu_absent"} & set(lines[0]) and "at_ms" in lines[0]
    assert (code, "restarted during the run" in out) == ((4, True) if restarts else (0, False))


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


SCENARIO = """
version: 1
name: two
model: tiny
tokenizer: {folder}
arms:
  - {{name: first, base_url: "{first}", credentials: {{short: KEY_SHORT, long: KEY_LONG}}, engine_metrics_url: "{first}"}}
  - {{name: second, base_url: "{second}"}}
lengths: {{short: {{prompt_tokens: 40, output_tokens: 4}}, long: {{prompt_tokens: 80, output_tokens: 4}}}}
capacity_per_s: 40
loads: [0.5, 1.0]
num_prompts: 10
seeds: [1, 2]
goodput: ["short:ttft:60000", "long:ttft:60000"]
lag_tolerance_ms: 60000
drain_deadline_s: 20
"""


async def compared(folder: Path, tmp_path: Path, first: Any, second: Any) -> tuple[int, str, str]:
    scenario = tmp_path / "scenario.yaml"
    scenario.write_text(SCENARIO.format(folder=folder, first=first.url, second=second.url))
    return await bench("compare", str(scenario), "--result-dir", str(tmp_path / "runs"))


async def test_a_comparison_sends_every_arm_the_same_and_prints_the_table(folder: Path, tmp_path: Path) -> None:
    pages = {"/v1/models": b"{}", "/metrics": metrics(started_at=1.0)}
    async with kit.scripted(Model(folder), pages=pages) as first, kit.scripted(Model(folder)) as second:
        code, out, err = await compared(folder, tmp_path, first, second)
        asked = [[each.json["messages"] for each in server.asked] for server in (first, second)]
        assert all("authorization" in each.headers for each in first.asked)
        assert not any("authorization" in each.headers for each in second.asked)
    assert code == 0, out + err
    assert len(asked[0]) == 40
    assert sorted(map(str, asked[0])) == sorted(map(str, asked[1]))
    assert out.count("### load") == 2
    assert "p95 ÷ first" in out and "| second | short |" in out
    (path,) = contents(tmp_path / "runs")
    said = json.loads((path / "comparison.json").read_text())
    assert len(said["order"]) == 8
    assert {cell["run_id"] for cell in said["order"]} == {each.name for each in contents(path) if each.is_dir()}
    for load in said["loads"]:
        assert load["traces"] == ["seed 1", "seed 2"]
        for arm in load["arms"]:
            assert arm["classes"]["short"]["offered"] == 16
            assert arm["classes"]["long"]["offered"] == 4
    assert said["loads"][0]["arms"][0]["p95_ratio_to_first"]["short.ttft_ms"]["pooled"] == 1.0


async def test_an_invalid_cell_takes_its_trace_out_for_all_arms(folder: Path, tmp_path: Path) -> None:
    async def wrong(asked: Any, reply: Any) -> None:
        await reply.answer(7, ["a"] * 4)

    pages = {"/v1/models": b"{}", "/metrics": metrics(started_at=1.0)}
    async with kit.scripted(Model(folder), pages=pages) as first, kit.scripted(wrong) as second:
        code, out, err = await compared(folder, tmp_path, first, second)
    assert code == 4, err
    assert "Left out for all arms" in out and "| second |" not in out


async def test_a_target_that_goes_away_leaves_what_was_measured_before(folder: Path, tmp_path: Path) -> None:
    pages = {"/v1/models": b"{}", "/metrics": metrics(started_at=1.0)}
    async with kit.scripted(Model(folder)) as second:
        gone = kit.ScriptedServer(Model(folder), url=second.url)
    async with kit.scripted(Model(folder), pages=pages) as first:
        code, _, err = await compared(folder, tmp_path, first, gone)
    assert code == 1
    assert "second: nothing answers" in err
    (path,) = contents(tmp_path / "runs")
    assert (path / "comparison.json").exists()


async def test_capacity_is_measured_with_so_many_requests_in_flight(folder: Path, tmp_path: Path) -> None:
    model = Model(folder)
    now, peak = 0, 0

    async def script(asked: Any, reply: Any) -> None:
        nonlocal now, peak
        now += 1
        peak = max(peak, now)
        await model(asked, reply)
        now -= 1

    async with kit.scripted(script) as server:
        words = ["capacity", "--base-url", server.url, "--model", "tiny", "--tokenizer", str(folder)]
        words += ["--short-tokens", "40", "--long-tokens", "80", "--output-tokens", "4", "--num-prompts", "2"]
        words += ["--concurrency", "3", "--warmup", "0.1", "--duration", "0.5", "--result-dir", str(tmp_path)]
        code, out, err = await bench(*words)
        salts = [asked.json["cache_salt"] for asked in server.asked]
    assert code == 0, err
    assert "closed loop, saturation, 3 in flight" in out
    assert peak <= 3
    assert len(set(salts)) == len(salts) > 3  # each of the two prompts was sent again
    (path,) = contents(tmp_path)
    said = json.loads((path / "capacity.json").read_text())["capacity"]
    assert said["requests_per_s"] > 0 and said["load"] == "closed loop, saturation"
    assert said["ends"] == {"completed": len(salts)}


async def test_capacity_of_a_port_where_nobody_speaks_http_is_not_begun(folder: Path, tmp_path: Path) -> None:
    async def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    server = await asyncio.start_server(hang_up, "127.0.0.1", 0)
    async with server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        words = ["capacity", "--base-url", url, "--model", "tiny", "--tokenizer", str(folder), "--num-prompts", "1"]
        code, _, err = await bench(*words, "--short-tokens", "40", "--result-dir", str(tmp_path))
    assert (code, f"nothing answers at {url}" in err) == (1, True)
    assert contents(tmp_path) == []


async def test_capacity_of_a_target_that_only_refuses_is_a_failure(folder: Path, tmp_path: Path) -> None:
    async with kit.scripted(lambda _asked, reply: reply.whole(503)) as server:
        words = ["capacity", "--base-url", server.url, "--model", "tiny", "--tokenizer", str(folder)]
        words += ["--short-tokens", "40", "--long-tokens", "80", "--output-tokens", "4", "--num-prompts", "10"]
        words += ["--concurrency", "2", "--warmup", "0", "--duration", "0.2", "--result-dir", str(tmp_path)]
        code, out, _ = await bench(*words)
    assert code == 1
    assert "2 refused" in out


class Folder:
    """The records of a comparison."""

    def __init__(self, results: Path) -> None:
        (self.path,) = results.iterdir()

    @property
    def comparison(self) -> Any:
        return json.loads((self.path / "comparison.json").read_text())

    def runs(self) -> dict[str, str]:
        """Cell id of each whole run by its id."""
        whole = [each for each in contents(self.path) if (each / "vllm_bench.json").exists()]
        return {each.name: json.loads((each / "run.json").read_text())["cell_id"] for each in whole}


@pytest.mark.parametrize("by", [signal.SIGKILL, signal.SIGINT])
async def test_a_comparison_that_was_stopped_goes_on_with_nothing_lost_or_doubled(
    folder: Path, tmp_path: Path, by: signal.Signals
) -> None:
    third = asyncio.Event()
    model = Model(folder)
    answered = 0

    async def script(asked: Any, reply: Any) -> None:
        nonlocal answered
        answered += 1
        if answered == 25 and not third.is_set():
            third.set()
            await reply.client_left()
        else:
            await model(asked, reply)

    pages = {"/v1/models": b"{}", "/metrics": metrics(started_at=1.0)}
    async with kit.scripted(script, pages=pages) as first, kit.scripted(script) as second:
        scenario = tmp_path / "scenario.yaml"
        scenario.write_text(SCENARIO.format(folder=folder, first=first.url, second=second.url))
        process = await started("compare", str(scenario), "--result-dir", str(tmp_path / "runs"))
        await third.wait()
        process.send_signal(by)
        out, err = await process.communicate()
        stopped = Folder(tmp_path / "runs")
        if by is signal.SIGINT:
            assert process.returncode == 4, err
            assert [cell["verdict"] for cell in stopped.comparison["order"]] == ["VALID", "VALID", "INVALID"]
            assert b"interrupted before its end" in out + err
        before = stopped.runs()
        code, out_after, err_after = await bench("compare", "--resume", str(stopped.path))
    assert code == 0, out_after + err_after
    order = stopped.comparison["order"]
    assert len(order) == len({cell["cell_id"] for cell in order}) == 8
    kept = {cell["run_id"]: cell["cell_id"] for cell in order}
    whole_before = dict(list(before.items())[:2])
    assert len(before) == (2 if by is signal.SIGKILL else 3) and whole_before.items() <= kept.items()
    assert all(len((stopped.path / name / "requests.jsonl").read_text().splitlines()) == 10 for name in kept)
    assert stopped.runs().items() - before.items() == kept.items() - whole_before.items()
    assert sum(each.name.endswith(".cut") for each in contents(stopped.path)) == (1 if by is signal.SIGKILL else 0)


async def test_a_folder_that_another_command_began_is_not_gone_on_with(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text('{"kind": "ladder"}')
    code, _, err = await bench("compare", "--resume", str(tmp_path))
    assert (code, "gateway bench ladder" in err) == (2, True)


def configuration(path: Path, url: str, tokenizer: Path, **engine: str) -> str:
    path.write_text(json.dumps(local_gateway.base_of_engine(url, "tiny", tokenizer, engine | {"calibration": "off"})))
    return str(path)


@pytest.mark.timeout(180)  # three gateways, one after another
async def test_policies_are_compared_through_gateways_that_are_the_benchs_own(folder: Path, tmp_path: Path) -> None:
    served = json.dumps({"object": "list", "data": [{"id": "tiny", "object": "model", "max_model_len": 4096}]}).encode()
    pages = {"/v1/models": served, "/metrics": metrics(started_at=1.0), "/version": b'{"version": "0.32.0"}'}
    pages["/health"] = b""
    async with kit.scripted(Model(folder), pages=pages) as engine, kit.scripted(Model(folder), pages=pages) as other:
        files = [configuration(tmp_path / "all.yaml", engine.url, folder, scheduling="fcfs")]
        files += ["short-first=" + configuration(tmp_path / "sf.yaml", other.url, folder, scheduling="priority")]
        words = ["policies", "passthrough", "short-first", "--aa", "--gateway-config", *files, "--model", "tiny"]
        words += ["--tokenizer", str(folder), "--rates", "20", "--num-prompts", "10"]
        words += ["--short-tokens", "40", "--long-tokens", "700", "--output-tokens", "4"]
        words += ["--goodput", "short:ttft:60000", "--result-dir", str(tmp_path / "runs")]
        code, out, err = await bench(*words, *PATIENT, "--engine-cost-per-hour", "3.6")
        by_engine = [[each for each in one.asked if "chat" in each.path] for one in (engine, other)]
    assert code == 0, out + err
    assert [len(asked) for asked in by_engine] == [20, 10]
    asked = by_engine[0] + by_engine[1]
    kept = Folder(tmp_path / "runs")
    said = kept.comparison
    arms = ["passthrough", "short-first", "passthrough-again"]
    assert [arm["name"] for arm in said["scenario"]["arms"]] == arms
    assert sorted(cell["arm"] for cell in said["order"]) == sorted(arms)
    assert [arm["about"] for arm in said["scenario"]["arms"]] == [
        "engine: scheduling fcfs",
        "engine: scheduling priority",
        "engine: scheduling fcfs",
    ]
    assert len({request.json["cache_salt"] for request in asked}) == 3
    assert not any("authorization" in request.headers for request in asked)
    texts = [(kept.path / name / "requests.jsonl").read_text() for name in kept.runs()]
    rows = [json.loads(line) for text in texts for line in text.splitlines()]
    assert {(row["class"], row["gateway_length_class"]) for row in rows} == {("short", "short"), ("long", "long")}
    noise = [each for each in said["differences"] if each["arm"] == "short-first" and each["class"] == "short"]
    assert noise and all("noise" in each for each in noise)
    (measured, *_) = [json.loads((kept.path / name / "measurements.json").read_text()) for name in kept.runs()]
    assert measured["cost"]["per_accepted_response"] == pytest.approx(0.001 * 0.5 / 10, rel=0.01)
    written = "".join(path.read_text() for path in kept.path.rglob("*") if path.is_file())
    assert "gw-" not in written


async def test_a_ladder_stops_where_the_target_fails_and_marks_the_knee(folder: Path, tmp_path: Path) -> None:
    model = Model(folder)
    seen = 0

    async def script(asked: Any, reply: Any) -> None:
        nonlocal seen
        seen += 1
        if seen > 20:
            await reply.whole(429, b"{}", {"x-gateway-reason": "queue_full"})
        else:
            await model(asked, reply)

    async with kit.scripted(script) as server:
        words = ["ladder", "--base-url", server.url, "--model", "tiny", "--tokenizer", str(folder)]
        words += ["--rates", "160", "40", "20", "80", "320", "--num-prompts", "10", "--short-tokens", "40"]
        words += ["--long-tokens", "80", "--output-tokens", "4", "--refine", "1", "--goodput", "short:ttft:60000"]
        code, out, err = await bench(*words, "--result-dir", str(tmp_path), *PATIENT)
    assert code == 4, out + err  # nothing completed at the rates that fail
    said = Folder(tmp_path).comparison
    assert [cell["rate_per_s"] for cell in said["order"]] == [20, 40, 80, 160]
    assert said["knee_per_s"] == 40
    assert "40 ← knee" in out and "INVALID" in out


@pytest.mark.timeout(180)
async def test_a_drill_is_held_on_an_engine_that_breaks_and_leaves_its_report(tmp_path: Path) -> None:
    code, out, err = await bench("faults", "in-band-error", "--result-dir", str(tmp_path))
    if code == 4:  # the machine that runs the tests was too busy for the client: nothing was drilled
        assert "the client kept time | NO" in out.replace("  ", "")
        return
    assert code == 0, out + err
    kept = Folder(tmp_path)
    (drill,) = json.loads((kept.path / "faults.json").read_text())["drills"]
    assert (drill["passed"], drill["offered"], drill["completed"]) == (True, 24, 23)
    code, out, _ = await bench("report", str(kept.path))
    assert (code, "All 1 drills passed" in out) == (0, True)
    assert "counted each once" in (kept.path / "report.html").read_text()


async def test_over_tls_handshakes_lie_before_the_run_and_those_in_it_are_counted_apart(
    folder: Path, tmp_path: Path
) -> None:
    tls, path = certificate(tmp_path)
    model = Model(folder)
    all_are_open = asyncio.Barrier(20)

    async def script(asked: Any, reply: Any) -> None:
        await all_are_open.wait()  # so that every request has a connection of its own
        await model(asked, reply)

    async with kit.scripted(script, tls=tls) as server:
        words = run_words(server.url, folder, tmp_path / "runs", request_rate=400, drain_deadline=60)
        code, out, err = await bench(*words, *PATIENT, SSL_CERT_FILE=str(path))
    assert code == 0, out + err
    records = Records(tmp_path / "runs")
    opened = [row for row in records.rows if "connect_ms" in row]
    assert records.json("measurements")["client"]["connections_opened"] == len(opened)
    assert len(opened) <= 2, "a socket that the server has just closed may be opened anew, no more"
    assert f"{len(opened)} connections opened during the run" in out


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
