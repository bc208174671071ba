"""What the status page and `gateway status` show, from a gateway that serves."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import sys

import pytest

from gateway.cli.recent import Recent
from gateway.cli.status import render
from gateway.testing import answers
from gateway.testing.harness import BATCH_KEY, running
from gateway.testing.scripted_engine import ScriptedEngine


async def test_the_page_asks_nobody_but_its_own_port(tmp_path):
    async with ScriptedEngine() as engine, running(tmp_path, engine) as gateway:
        page = await gateway.ops("/")
        text = page.body.decode()
        asked = {address for address in re.findall(r"(?:src|href)=\"([^\"]+)\"", text) if address != "data:,"}
        assert asked == {"/page.css", "/page.js"}
        files = [await gateway.ops(path) for path in (*asked, "/rows.js", "/history.js")]
    assert [file.status for file in files] == [200] * 4
    assert page.header("content-type") == "text/html; charset=utf-8"
    assert "connect-src 'self'" in page.header("content-security-policy")
    whole = text + "".join(file.body.decode() for file in files)
    assert set(re.findall(r"https?://[^\s\"]+", whole)) <= {"http://www.w3.org/2000/svg"}
    assert "innerHTML" not in whole


async def test_the_state_counts_ends_and_refusals(tmp_path):
    async with ScriptedEngine(answers.completion()) as engine, running(tmp_path, engine) as gateway:
        await gateway.chat()
        await gateway.chat(key=BATCH_KEY, model=7)
        totals = (await gateway.ops("/api/state")).json()["totals"]
    assert totals["outcomes"] == {
        **dict.fromkeys(("expired", "client_gone", "engine_error", "timed_out"), 0),
        "completed": 1,
        "refused": 1,
    }
    assert totals["refusals"] == {"bad_request": 1}


ON_ONE_LOOP = pytest.mark.asyncio(loop_factories=["uvloop"])  # what is judged is another process


async def status(port):
    return await asked(port, "status")


async def asked(port, *words):
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gateway", *words, "--url", f"http://127.0.0.1:{port}"),
        env=os.environ | dict.fromkeys(("http_proxy", "no_proxy"), "http://127.0.0.1:1"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, error = await child.communicate()
    return child.returncode, out.decode(), error.decode()


@ON_ONE_LOOP
async def test_the_command_shows_lines_engines_and_ends(tmp_path):
    async with ScriptedEngine(answers.completion()) as engine, running(tmp_path, engine) as gateway:
        await gateway.chat()
        code, out, _ = await status(gateway.ops_port)
    assert code == 0
    assert out.startswith("policy a-plan, serving, ready")
    assert "lines over 0.8 of their limit: 0; engines down: 0" in out
    assert re.search(r"^interactive +short +chat +0 +0 +0 +2 +0$", out, re.MULTILINE)
    assert re.search(r"^a +chat +up +1 +0 +0 of 1 ", out, re.MULTILINE)
    assert re.search(r"^outcome +completed +1 +1 +█$", out, re.MULTILINE)


def a_line(name, age_s, **members):
    shown = {"requests": 1, "prompt_tokens": 5, "bytes": 9, "oldest_age_s": age_s, "wait_s_max": 100}
    return {"service_class": name, "length_class": "short", **shown, **members}


async def test_the_command_has_the_worst_first_why_it_waits_and_what_was_before(tmp_path):
    async with ScriptedEngine(answers.completion()) as engine, running(tmp_path, engine) as gateway:
        state = (await gateway.ops("/api/state?promises=off")).json()
    (pool,) = state["pools"].values()
    pool["lines"] = [a_line("calm", 10.0), a_line("late", 81.0)]
    pool["engines"]["a"]["used"]["slots"] = pool["engines"]["a"]["budgets"]["slots"]
    pool["engines"]["b"] = pool["engines"]["a"] | {"up": False, "state": "refusing", "problem": "Connection refused"}
    recent = Recent()
    values = [[1_000_000_000 + 5 * bucket, 20.0] for bucket in (0, 178, 179)] + [[1_000_000_000 + 5 * 100, 100.0]]
    late = {"service_class": "late", "length_class": "short", "pool": "chat", "values": values}
    refused = [
        {"service_class": name, "reason": "queue_full", "values": [[1_000_000_895, 2]]} for name in ("calm", "late")
    ]
    head = {"began_at": 1.0, "last_at": 1_000_000_895, "bucket_s": 5, "buckets": 180}
    recent.take({**head, "outcomes": [], "refusals": refused, "oldest_age_s": [late]})
    state["totals"]["refusals"] = {"queue_full": 7}
    text = render(state, recent)
    assert "lines over 0.8 of their limit: 1; engines down: 1" in text
    assert text.index("late ") < text.index("calm ")
    assert re.search(r"^late +short +chat +1 +5 +81 +100 +▂ {7}█ {5}▂ +slots +0$", text, re.MULTILINE)
    assert re.search(r"^b +chat +refusing: Connection refused ", text, re.MULTILINE)
    assert text.index("b     ") < text.index("a     ")
    assert re.search(r"^refusal +queue_full +7 +4 ", text, re.MULTILINE)
    recent.take({**head, "last_at": 1_000_000_895 + 5 * 180, "outcomes": [], "refusals": [], "oldest_age_s": []})
    assert recent.total("refusals", "queue_full") == 0, "what is older than all that is kept is gone"


@ON_ONE_LOOP
async def test_where_no_gateway_is_the_command_says_so():
    with socket.socket() as place:
        place.bind(("127.0.0.1", 0))
        code, _, error = await status(place.getsockname()[1])
    assert code == 1
    assert error.startswith("error: no state from")
    assert error.endswith(": Connection refused. Is the gateway running there?\n")


@ON_ONE_LOOP
@pytest.mark.parametrize("words", [("status",), ("shadow", "report"), ("explain", "req-1")])
async def test_what_is_asked_of_a_port_that_is_not_the_ops_port_fails_in_plain_words(tmp_path, words):
    async with ScriptedEngine(answers.completion()) as engine, running(tmp_path, engine) as gateway:
        for port in (gateway.port, engine.port):
            code, out, error = await asked(port, *words)
            assert (code, out) == (1, "")
            assert error.startswith("error: ")
            assert "not a gateway's ops port" in error
            assert error.count("\n") == 1
