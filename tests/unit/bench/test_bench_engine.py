"""The engine's metrics: added over processes, unknown after a restart, absent where they are not."""

import asyncio
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from bench_kit import scripted

from bench.engine import gpu, samples, sampling
from bench.engine.gpu import Gpus, NoGpu
from bench.engine.metrics import Reading, Unreadable, delta, parse, restarted, wanted
from bench.engine.session import open_session
from bench.engine.watch import engine_version, scrape, wait_until_idle


def page(*, running: int = 0, waiting: int = 0, preemptions: int = 0, started: float = 100.0, engines: int = 1) -> str:
    lines = [f"process_start_time_seconds {started}"]
    for engine in range(engines):
        labels = f'{{engine="{engine}",model_name="m"}}'
        lines += [
            f"vllm:num_requests_running{labels} {running}",
            f"vllm:num_requests_waiting{labels} {waiting}",
            f"vllm:kv_cache_usage_perc{labels} {0.25 * (engine + 1)}",
            f"vllm:num_preemptions_total{labels} {preemptions}",
            f"vllm:prompt_tokens_total{labels} 1000",
        ]
    lines.append('vllm:cache_config_info{engine="0",enable_prefix_caching="False",block_size="16"} 1.0')
    return "\n".join(lines) + "\n"


def test_values_of_several_engine_processes_are_added_and_kv_usage_is_the_highest() -> None:
    reading = parse(page(running=2, waiting=1, engines=2))
    assert reading.gauges == {"running": 4.0, "waiting": 2.0, "kv_usage_max": 0.5}
    assert reading.counters["prompt_tokens"] == 2000.0


def test_the_cache_configuration_is_read_back() -> None:
    assert parse(page()).cache_config["enable_prefix_caching"] == "False"


def test_counters_grow_by_their_difference() -> None:
    assert delta(parse(page(preemptions=3)), parse(page(preemptions=5)))["preemptions"] == 2.0


@pytest.mark.parametrize(
    "after",
    [page(preemptions=9, started=200.0), page(preemptions=1), "process_start_time_seconds 100\n"],
    ids=["another process", "a counter fell", "a counter vanished"],
)
def test_after_a_restart_every_difference_is_unknown(after: str) -> None:
    before = parse(page(preemptions=3))
    assert restarted(before, parse(after))
    assert set(delta(before, parse(after)).values()) == {"unknown"}


def test_an_engine_that_does_not_say_is_neither_idle_nor_busy() -> None:
    assert parse("up 1\n").idle is None
    assert parse(page()).idle is True
    assert parse(page(waiting=1)).idle is False


async def test_a_scrape_that_fails_says_why() -> None:
    pages = {"/metrics": b"{not prometheus", "/proxy": b"up 1\n", "/version": b'{"version": "0.32.0"}'}
    async with (
        scripted(lambda _asked, reply: reply.whole(200), pages=pages) as server,
        open_session() as session,
    ):
        assert await scrape(session, f"{server.url}/metrics") == Unreadable("not_prometheus_text")
        assert await scrape(session, f"{server.url}/nothing") == Unreadable("http_404")
        assert await scrape(session, f"{server.url}/proxy") == Unreadable("no_engine_metrics")
        assert await engine_version(session, f"{server.url}/metrics") == "0.32.0"
        gone = server.url
    async with open_session() as session:
        assert await scrape(session, f"{gone}/metrics") == Unreadable("no_connection")
        assert await engine_version(session, f"{gone}/metrics") is None


async def test_an_idle_engine_is_waited_for_and_a_busy_one_given_up() -> None:
    pages = {"/metrics": page().encode(), "/busy": page(running=1).encode()}
    async with (
        scripted(lambda _asked, reply: reply.whole(200), pages=pages) as server,
        open_session() as session,
    ):
        assert isinstance(await scrape(session, f"{server.url}/metrics"), Reading)
        assert await wait_until_idle(session, f"{server.url}/metrics", wait_s_max=30.0, clock=time.perf_counter)
        assert not await wait_until_idle(session, f"{server.url}/busy", wait_s_max=0.0, clock=time.perf_counter)


def test_what_is_sampled_parses_to_the_same_gauges_and_counters() -> None:
    text = page(running=2, preemptions=3) + "# HELP other words\nother_total 5\n"
    assert "other" not in wanted(text)
    assert (parse(wanted(text)).gauges, parse(wanted(text)).counters) == (parse(text).gauges, parse(text).counters)


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-Inf"])
def test_what_is_no_number_was_not_measured(value: str) -> None:
    text = page(running=2) + f"vllm:prefix_cache_hits_total {value}\nprocess_start_time_seconds {value}\n"
    reading = parse(
        text.replace('vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25', f"vllm:kv_cache_usage_perc {value}")
    )
    assert reading.gauges == {"running": 2.0, "waiting": 0.0}
    assert "prefix_cache_hit_tokens" not in reading.counters and reading.started_at == 100.0


async def test_a_sample_holds_what_the_engine_said_or_why_it_did_not() -> None:
    pages = {"/metrics": page(running=2, waiting=3).encode(), "/html": b"<html>"}
    async with scripted(lambda _asked, reply: reply.whole(200), pages=pages) as server:
        url = server.url
        said = await asyncio.to_thread(sampling.sample, {"a": f"{url}/metrics"}, NoGpu("no NVIDIA GPU"))
        html = await asyncio.to_thread(sampling.sample, {"a": f"{url}/html"}, NoGpu("no NVIDIA GPU"))
        nothing = await asyncio.to_thread(sampling.sample, {"a": f"{url}/nothing"}, NoGpu("no NVIDIA GPU"))
    gone = await asyncio.to_thread(sampling.sample, {"a": f"{url}/metrics"}, NoGpu("no NVIDIA GPU"))
    assert (said["running"], said["waiting"], said["started_at"], said["gpu_absent"]) == (2, 3, 100.0, "no NVIDIA GPU")
    assert "gpu_memory_bytes" not in said
    assert [each["unreadable"] for each in (html, nothing, gone)] == ["no_engine_metrics", "http_404", "no_connection"]


@pytest.mark.parametrize("framing", [b"Content-Length: 99", b"Transfer-Encoding: chunked"])
async def test_a_reading_that_is_cut_is_none(framing: bytes) -> None:
    async def cut(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        size = b"50\r\n" if b"chunked" in framing else b""
        writer.write(b"HTTP/1.1 200 OK\r\n" + framing + b"\r\n\r\n" + size + b"vllm:num_requests_running 1\n")
        writer.close()

    server = await asyncio.start_server(cut, "127.0.0.1", 0)
    async with server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/metrics"
        line = await asyncio.to_thread(sampling.sample, {"a": url}, NoGpu("no NVIDIA GPU"))
    assert (line["unreadable"], "running" in line) == ("no_answer", False)


def test_a_line_that_is_half_written_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "engine.jsonl"
    path.write_text('{"at_s": 1.0}\n{"at_s": 2')
    assert sampling.read_lines(path) == [{"at_s": 1.0}]
    assert sampling.read_lines(None) == sampling.read_lines(tmp_path / "gone") == []


def line(at_ms: float, **said: Any) -> dict[str, Any]:
    return {"at_ms": at_ms, **said}


def test_samples_are_summed_up_without_inventing_what_was_not_read() -> None:
    assert samples.during([], 2500) == {}
    lines = [
        line(-500, running=1, waiting=0, kv_usage_max=0.1, gpu_absent="no NVIDIA GPU"),
        line(500, unreadable="timeout"),
        line(2500, running=3, waiting=7, kv_usage_max=0.4),
    ]
    assert samples.during(lines, 2500) == {
        "samples": 2,
        "unreadable": {"timeout": 1},
        "gap_s_max": 3.0,
        "running_max": 3,
        "waiting_max": 7,
        "kv_usage_max": 0.4,
        "gpu_absent": "no NVIDIA GPU",
    }
    assert samples.during([line(0, unreadable="timeout")], 900) == {"samples": 0, "unreadable": {"timeout": 1}}
    assert samples.longest_gap_s([line(0, unreadable="x"), line(4000), line(5000, unreadable="x")], 5000) == 4.0
    assert samples.longest_gap_s([line(0), line(1000)], 9000) == 8.0, "whoever reads may have ended before the run"


def test_a_restart_that_both_ends_of_a_run_did_not_see_is_seen_between_them() -> None:
    same = [line(0, started_at=1.0, prompt_tokens=5), line(1, unreadable="no_connection"), line(2, started_at=1.0)]
    assert samples.restarts(same) == 0
    assert samples.restarts([*same, line(3, started_at=2.0, prompt_tokens=9)]) == 1
    assert samples.restarts([line(0, prompt_tokens=5), line(1, prompt_tokens=4)]) == 1


class Nvml:
    """NVIDIA's binding, as far as it is used, with two devices."""

    class NVMLError(Exception):
        pass

    def __init__(self, *, devices: int = 2, broken: bool = False) -> None:
        self._devices, self.broken = devices, broken

    def nvmlInit(self) -> None:  # noqa: N802 - NVIDIA's names
        if self.broken:
            raise self.NVMLError("Driver Not Loaded")

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return self._devices

    def nvmlDeviceGetHandleByIndex(self, number: int) -> int:  # noqa: N802
        return number

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> SimpleNamespace:  # noqa: N802
        if self.broken:
            raise self.NVMLError("GPU is lost")
        return SimpleNamespace(used=(handle + 1) * 1024)

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> SimpleNamespace:  # noqa: N802
        if self.broken:
            raise self.NVMLError("GPU is lost")
        return SimpleNamespace(gpu=handle * 40, memory=0)


def test_gpu_memory_is_of_all_devices_their_use_of_the_busiest_and_both_absent_with_a_reason() -> None:
    def missing(_name: str) -> Any:
        raise ImportError

    nvml = Nvml()
    found = gpu.find(lambda _name: nvml)
    assert isinstance(found, Gpus) and found.used_bytes() == 3072
    line = sampling.sample({"nowhere": "http://127.0.0.1:1/metrics"}, found)
    assert line["gpu_memory_bytes"] == 3072 and line["gpu_busy_share"] == 0.4
    nvml.broken = True
    assert found.used_bytes() is None and found.busy_share() is None
    assert gpu.find(missing) == NoGpu("nvidia-ml-py is not installed")
    assert gpu.find(lambda _name: Nvml(broken=True)) == NoGpu("NVML: Driver Not Loaded")
    assert gpu.find(lambda _name: Nvml(devices=0)) == NoGpu("no NVIDIA GPU")
    for urls in (["http://gpu-host:8000/metrics"], ["http://127.0.0.1:8000/metrics", "http://gpu-host:8000/metrics"]):
        assert sampling.gpus_behind(urls) == NoGpu("the engine is on another machine")
