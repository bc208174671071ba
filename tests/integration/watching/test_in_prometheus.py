"""A real Prometheus that scrapes a real gateway: the first alert under a stall, and every query of the dashboard."""

from __future__ import annotations

import asyncio
import json
import shutil
import socket
import urllib.parse
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from gateway.core.plan import AdmissionKind, KvBudget, Slo, SlotBudget
from gateway.core.types import LengthClass
from gateway.testing import answers, raw_client
from gateway.testing.builders import a_class, a_plan, an_admission
from gateway.testing.harness import BATCH_KEY, running
from gateway.testing.scripted_engine import ScriptedEngine

DEPLOY = Path(__file__).parents[3] / "deploy"
RULES = DEPLOY / "prometheus"
WAIT_S = 10.0
UNTIL_S_MAX = 60.0

pytestmark = pytest.mark.skipif(
    shutil.which("prometheus") is None, reason="prometheus is not installed: on Debian, apt install prometheus"
)


def configuration(folder, ops_port):
    """Write the shipped rules, looked at often; only how long an alert is kept after its end is shorter."""
    alerts = (RULES / "alerts.yaml").read_text().replace("keep_firing_for: 1m", "keep_firing_for: 1s")
    (folder / "alerts.yaml").write_text(alerts)
    (folder / "scorecard.yaml").write_text((RULES / "scorecard.yaml").read_text())
    text = (RULES / "prometheus.yaml").read_text().replace("15s", "200ms").replace("9090", str(ops_port))
    (folder / "prometheus.yaml").write_text(text)


def a_free_port():
    with socket.socket() as place:
        place.bind(("127.0.0.1", 0))
        return place.getsockname()[1]


class Prometheus:
    def __init__(self, port):
        self._port = port

    async def ask(self, path):
        answer = await raw_client.request(self._port, path)
        return json.loads(answer.body)["data"] if answer.status == 200 else None

    async def firing(self):
        told = await self.ask("/api/v1/alerts")
        return [alert for alert in (told or {"alerts": []})["alerts"] if alert["state"] == "firing"]

    async def value(self, query):
        """Return the series that a query finds now."""
        told = await self.ask(f"/api/v1/query?query={urllib.parse.quote(query)}")
        return told["result"]

    async def until(self, condition):
        """Ask until the condition holds of what fires."""
        async with asyncio.timeout(UNTIL_S_MAX):
            while True:
                try:
                    alerts = await self.firing()
                except ConnectionRefusedError:
                    alerts = None
                if alerts is not None and condition(alerts):
                    return alerts
                await asyncio.sleep(0.05)


@asynccontextmanager
async def prometheus(folder, ops_port):
    await asyncio.to_thread(configuration, folder, ops_port)
    port = a_free_port()
    child = await asyncio.create_subprocess_exec(
        "prometheus",
        f"--config.file={folder}/prometheus.yaml",
        f"--storage.tsdb.path={folder}/data",
        f"--web.listen-address=127.0.0.1:{port}",
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        yield Prometheus(port)
    finally:
        if child.returncode is None:
            child.terminate()
        await child.wait()


@pytest.mark.timeout(150)
async def test_the_oldest_queued_age_fires_under_a_stall_and_resolves_after_it(tmp_path):
    plan = a_plan(
        a_class("interactive", wait_s_max=(WAIT_S, 30)),
        a_class("batch", rank=1, weight=1),
        admission=an_admission(AdmissionKind.SLOTS, slots=SlotBudget(1)),
    )
    go_on = asyncio.Event()

    async def stalled(request, wire):
        await go_on.wait()
        await answers.completion()(request, wire)

    async with (
        ScriptedEngine(stalled) as engine,
        running(tmp_path, engine, plan=plan) as gateway,
        prometheus(tmp_path, gateway.ops_port) as watcher,
    ):
        # Scraped and evaluated before the stall begins.
        await watcher.until(lambda alerts: alerts == [])
        async with asyncio.TaskGroup() as group:
            callers = [group.create_task(gateway.chat()) for _ in range(2)]
            (alert,) = await watcher.until(bool)
            go_on.set()
        assert alert["labels"].items() >= {
            ("alertname", "OldestQueuedAge"),
            ("service_class", "interactive"),
            ("length_class", "short"),
            ("pool", "chat"),
            ("severity", "page"),
        }
        assert [caller.result().status for caller in callers] == [200, 200]
        await watcher.until(lambda alerts: alerts == [])
        targets = await watcher.ask("/api/v1/targets")
        assert [target["health"] for target in targets["activeTargets"]] == ["up"]


def dashboard_queries():
    board = json.loads((DEPLOY / "grafana/gateway.json").read_text())
    for panel in board["panels"]:
        for target in panel.get("targets", ()):
            expr = target["expr"].replace("$__rate_interval", "10s")
            for variable in ("job", "pool", "service_class"):
                expr = expr.replace(f"${variable}", ".*")
            yield expr


@pytest.mark.timeout(150)
async def test_every_query_of_the_dashboard_finds_what_it_asks_for(tmp_path):
    slo = dict.fromkeys(LengthClass, Slo(ttft_ms=500, stall_ms=1000, e2e_ms=20_000))
    plan = a_plan(
        replace(a_class("interactive"), slo=slo),
        a_class("batch", rank=1, weight=1, requests_max=0),
        admission=an_admission(kv=KvBudget(), slots=SlotBudget(1)),
    )

    async def paced(_request, wire):
        first, *rest = answers.events_of("a", "b", tail=[answers.usage_event(5, 3)])
        await wire.send(answers.STREAM_HEAD, answers.chunk(first))
        await asyncio.sleep(0.05)
        await wire.send(*map(answers.chunk, rest), answers.CHUNKS_END)

    engine = ScriptedEngine(paced)
    engine.metrics["preemptions"] = 1
    async with (
        engine,
        running(tmp_path, engine, plan=plan) as gateway,
        prometheus(tmp_path, gateway.ops_port) as watcher,
    ):
        await watcher.until(lambda alerts: alerts == [])
        async with asyncio.timeout(UNTIL_S_MAX):
            left = list(dashboard_queries())
            while left:
                await asyncio.gather(gateway.chat(stream=True), gateway.chat(key=BATCH_KEY, stream=True))
                left = [query for query in left if not await watcher.value(query)]
