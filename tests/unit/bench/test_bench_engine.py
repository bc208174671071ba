"""The engine's metrics: added over processes, unknown after a restart, absent where they are not."""

import time

import pytest
from bench_kit import scripted

from bench.engine.metrics import Reading, delta, parse, restarted
from bench.engine.session import open_session
from bench.engine.watch import Unreadable, engine_version, scrape, wait_until_idle


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
    pages = {"/metrics": b"{not prometheus", "/version": b'{"version": "0.32.0"}'}
    async with (
        scripted(lambda _asked, reply: reply.whole(200), pages=pages) as server,
        open_session() as session,
    ):
        assert await scrape(session, f"{server.url}/metrics") == Unreadable("not_prometheus_text")
        assert await scrape(session, f"{server.url}/nothing") == Unreadable("http_404")
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
