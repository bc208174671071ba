"""Signed tokens through the whole gateway: who is let in, how keys roll over, and what a forged token cannot do."""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import asynccontextmanager

import pytest

from gateway.identity import fetched_keys, signing_keys
from gateway.server import keys_watch
from gateway.strict_yaml import ConfigError
from gateway.testing import answers, issuer
from gateway.testing.harness import INTERACTIVE_KEY, MODEL, a_chat, running
from gateway.testing.issuer import ALGORITHMS, claims, key_set, public_jwk, token
from gateway.testing.raw_client import RawClient
from gateway.testing.scripted_engine import ScriptedEngine

CHAT = "/v1/chat/completions"
WAIT_S_MAX = 30.0
DAY_S = 86_400


def auth(**jwt):
    rules = {
        "issuer": issuer.ISSUER,
        "audience": issuer.AUDIENCE,
        "service_class_claim": issuer.CLASS_CLAIM,
        "tenant_claim": issuer.TENANT_CLAIM,
        **jwt,
    }
    return {"keys_file": "keys.yaml", "jwt": rules}


def fresh(algorithm="RS256", name=None, **changes):
    return token(claims(time.time(), **changes), algorithm, name)  # noqa: TID251 - the issuer has a clock of its own


async def until_let_in(gateway, presented):
    async with asyncio.timeout(WAIT_S_MAX):
        while (await gateway.chat(key=presented)).status != 200:  # noqa: ASYNC110 - seen from outside, by asking
            await asyncio.sleep(0.01)


async def replace(path, raw):
    """Put a whole new file in the place of the old one, so that no half of it is ever read."""
    draft = path.with_suffix(".new")
    await asyncio.to_thread(draft.write_bytes, raw)
    await asyncio.to_thread(draft.replace, path)


@pytest.fixture
def jwks_file(tmp_path):
    path = tmp_path / "jwks.json"
    path.write_bytes(key_set())
    return path


class IssuersAddress:
    """An HTTP server on loopback that answers every request with `answer`, after `may_answer` is set."""

    def __init__(self, body):
        self.answer = http(200, body)
        self.asked = 0
        self.paths = []
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    @asynccontextmanager
    async def serving(self, port=0):
        server = await asyncio.start_server(self._serve, "127.0.0.1", port)
        self.port = server.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}/jwks?a=b"
        async with server:
            yield self
            self.may_answer.set()

    async def _serve(self, reader, writer):
        head = await reader.readuntil(b"\r\n\r\n")
        self.asked += 1
        self.paths.append(head.split(b" ")[1].decode())
        await self.may_answer.wait()
        writer.write(self.answer)
        writer.close()


def http(status, body, **headers):
    lines = [f"HTTP/1.1 {status} X", f"Content-Length: {len(body)}", *(f"{k}: {v}" for k, v in headers.items())]
    return "\r\n".join([*lines, "", ""]).encode() + body


@pytest.mark.parametrize("header", ["Authorization", "x-api-key"])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
async def test_a_token_has_its_class_its_tenant_and_its_line_in_the_log(tmp_path, jwks_file, logged, algorithm, header):
    presented = fresh(algorithm, gw_class="batch", jti="secret-id")
    value = presented if header == "x-api-key" else f"Bearer {presented}"
    async with (
        ScriptedEngine(answers.completion()) as engine,
        running(tmp_path, engine, auth=auth(jwks_file="jwks.json")) as gateway,
    ):
        answer = await gateway.ask(CHAT, a_chat(), key=None, headers={header: value})
        assert answer.status == 200
        assert answer.header("x-gateway-service-class") == "batch"
        assert await gateway.metric("gateway_requests_total", service_class="batch", outcome="completed") == 1
        assert (await gateway.chat()).status == 200
    assert engine.posts[0].header("authorization") == []
    assert engine.posts[0].header("x-api-key") == []
    written = logged()
    line = next(each for each in map(json.loads, written.splitlines()) if each.get("tenant") == "acme")
    assert line["key_id"].startswith("jwt-")
    for secret in (*presented.split("."), "secret-id"):
        assert secret not in written


@pytest.mark.parametrize("is_fetched", [False, True])
@pytest.mark.parametrize("days", [-1, 1, 30])
async def test_a_token_ends_by_the_wall_clock_as_it_is_now(tmp_path, jwks_file, wall_clock, days, is_fetched):
    before, after = (token(claims(at, nbf=at)) for at in (wall_clock.now, wall_clock.now + days * DAY_S))
    async with (
        ScriptedEngine(answers.completion()) as engine,
        IssuersAddress(key_set()).serving() as address,
        running(
            tmp_path, engine, auth=auth(**{"jwks_url": address.url} if is_fetched else {"jwks_file": "jwks.json"})
        ) as gateway,
    ):
        await until_let_in(gateway, before)
        assert (await gateway.chat(key=after)).status == 401
        wall_clock.now += days * DAY_S
        assert [(await gateway.chat(key=presented)).status for presented in (before, after)] == [401, 200]


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({"gw_class": "gold"}, 403),
        ({"gw_class": ...}, 403),
        ({"sub": 7}, 401),
        ({"exp": 1}, 401),
        ({"aud": "another"}, 401),
        ({"iss": "https://another.example"}, 401),
    ],
)
@pytest.mark.parametrize("path", [CHAT, "/v1/models", f"/v1/models/{MODEL}"])
async def test_a_token_that_does_not_say_enough_is_refused_on_every_route(tmp_path, jwks_file, changes, status, path):
    said = {**claims(time.time()), **changes}  # noqa: TID251 - the issuer has a clock of its own
    said = {name: value for name, value in said.items() if value is not ...}
    async with ScriptedEngine() as engine, running(tmp_path, engine, auth=auth(jwks_file="jwks.json")) as gateway:
        value = a_chat() if path == CHAT else None
        # PyJWT itself does not sign a subject that is no text.
        presented = issuer.signed({"alg": "EdDSA", "kid": "EdDSA"}, said)
        answer = await gateway.ask(path, value, key=presented)
    assert answer.status == status
    told = answer.header("x-gateway-reason"), answer.json()["error"]["code"]
    assert (
        told == {401: ("unauthenticated", "invalid_api_key"), 403: ("not_allowed", "service_class_not_allowed")}[status]
    )
    assert not engine.posts


async def test_a_token_is_for_the_models_of_its_claim(tmp_path, jwks_file):
    rules = auth(jwks_file="jwks.json", models_claim="gw_models")
    async with ScriptedEngine(answers.completion()) as engine, running(tmp_path, engine, auth=rules) as gateway:
        for models, status in (([MODEL], 200), (["another"], 403), (..., 403), (MODEL, 403)):
            presented = fresh(**({} if models is ... else {"gw_models": models}))
            assert (await gateway.chat(key=presented)).status == status
        listed = await gateway.ask("/v1/models", key=fresh(gw_models=["another"]))
    assert listed.json()["data"] == []


async def test_a_changed_key_file_is_in_force_without_a_restart_and_a_bad_one_changes_nothing(
    tmp_path, jwks_file, monkeypatch, logged
):
    monkeypatch.setattr(keys_watch, "LOOK_EVERY_S", 0.02)
    refused, load, loop = asyncio.Event(), signing_keys.load_key_set, asyncio.get_running_loop()

    def noting(path):
        try:
            return load(path)
        except ConfigError:
            loop.call_soon_threadsafe(refused.set)
            raise

    monkeypatch.setattr(signing_keys, "load_key_set", noting)
    rolled, kept = fresh("ES256", "new"), fresh("EdDSA")
    async with (
        ScriptedEngine(answers.completion()) as engine,
        running(tmp_path, engine, auth=auth(jwks_file="jwks.json")) as gateway,
    ):
        assert (await gateway.chat(key=rolled)).status == 401
        assert (await gateway.chat(key=kept)).status == 200
        await replace(jwks_file, key_set(public_jwk("ES256", "new")))
        await until_let_in(gateway, rolled)
        assert (await gateway.chat(key=kept)).status == 401
        await replace(jwks_file, b"{}")
        async with asyncio.timeout(WAIT_S_MAX):
            await refused.wait()
        assert (await gateway.chat(key=rolled)).status == 200
    lines = [json.loads(line) for line in logged().splitlines()]
    (line,) = [line for line in lines if line["event"] == "keys_refused"]
    assert (line["file"], line["problem"]) == (str(jwks_file), "has no list of keys")


async def test_a_faulty_key_file_is_no_start(tmp_path, jwks_file):
    await asyncio.to_thread(jwks_file.write_bytes, b"{}")
    async with ScriptedEngine() as engine:
        with pytest.raises(ConfigError, match="has no list of keys"):
            async with running(tmp_path, engine, auth=auth(jwks_file="jwks.json")):
                pass


# ── keys behind an address ──


async def test_keys_come_from_the_issuers_address_and_roll_over_without_a_refused_request(tmp_path, monkeypatch):
    monkeypatch.setattr(fetched_keys, "AGAIN_S_MIN", 0.0)
    async with (
        IssuersAddress(key_set()).serving() as address,
        ScriptedEngine(answers.completion()) as engine,
        running(tmp_path, engine, auth=auth(jwks_url=address.url)) as gateway,
    ):
        assert (await gateway.chat(key=fresh())).status == 200
        address.answer = http(200, key_set(public_jwk("EdDSA", "new")))
        assert (await gateway.chat(key=fresh("EdDSA", "new"))).status == 200
        assert (await gateway.chat(key=fresh())).status == 401
        assert await gateway.metric("gateway_signing_key_fetches_total", result="taken") >= 2
    assert set(address.paths) == {"/jwks?a=b"}


async def test_forged_key_names_do_not_make_the_gateway_ask_again_and_again(tmp_path):
    async with (
        IssuersAddress(key_set()).serving() as address,
        ScriptedEngine(answers.completion()) as engine,
        running(tmp_path, engine, auth=auth(jwks_url=address.url)) as gateway,
    ):
        assert (await gateway.chat(key=fresh())).status == 200
        forged = [gateway.ask("/v1/models", key=fresh("EdDSA", f"forged-{number}")) for number in range(50)]
        assert {answer.status for answer in await asyncio.gather(*forged)} == {401}
        assert address.asked == 1


@pytest.mark.parametrize(
    "answer",
    [
        http(302, b"", Location="http://127.0.0.1:9/"),
        http(500, b""),
        http(200, b"<html>"),
        http(200, b" " * (1 << 18) + key_set()),
        b"nonsense\r\n\r\n",
        b"",
    ],
)
async def test_an_address_without_a_key_set_is_told_of_and_keys_go_on(tmp_path, logged, answer):
    address = IssuersAddress(b"")
    address.answer = answer
    async with (
        address.serving(),
        ScriptedEngine(answers.completion()) as engine,
        running(tmp_path, engine, auth=auth(jwks_url=address.url)) as gateway,
    ):
        refused = await gateway.chat(key=fresh())
        assert (refused.status, refused.json()["error"]["code"]) == (401, "invalid_api_key")
        assert (await gateway.chat(key=INTERACTIVE_KEY)).status == 200
        assert await gateway.metric("gateway_signing_key_fetches_total") == 1
    lines = [json.loads(line) for line in logged().splitlines()]
    assert [line["event"] for line in lines if line["event"].startswith("signing")] == ["signing_keys_not_fetched"]


async def test_a_gateway_that_started_before_its_issuer_lets_tokens_in_once_it_answers(tmp_path, monkeypatch):
    monkeypatch.setattr(fetched_keys, "AGAIN_S_MIN", 0.02)
    address = IssuersAddress(key_set())
    async with address.serving():
        pass
    async with (
        ScriptedEngine(answers.completion()) as engine,
        running(tmp_path, engine, auth=auth(jwks_url=address.url)) as gateway,
    ):
        async with asyncio.timeout(WAIT_S_MAX):
            while not await gateway.metric("gateway_signing_key_fetches_total", result="unreachable"):  # noqa: ASYNC110 - seen from outside
                await asyncio.sleep(0.005)
        async with address.serving(address.port):
            await until_let_in(gateway, fresh())


async def test_a_caller_who_leaves_while_keys_are_fetched_is_counted_and_hinders_nobody(tmp_path):
    address = IssuersAddress(key_set())
    address.may_answer.clear()
    async with (
        address.serving(),
        ScriptedEngine(answers.completion()) as engine,
        running(tmp_path, engine, auth=auth(jwks_url=address.url)) as gateway,
    ):
        async with RawClient(gateway.port, key=fresh()) as leaver:
            await leaver.post(CHAT, a_chat())
            await gateway.until(lambda: address.asked == 1)
            leaver.leave()
            await gateway.until_metric("gateway_requests_total", 1, outcome="client_gone")
        async with RawClient(gateway.port, key=fresh()) as stayer:
            await stayer.post(CHAT, a_chat())
            address.may_answer.set()
            assert (await stayer.read_answer()).status == 200
        assert await gateway.metric("gateway_offered_total") == 2
        assert await gateway.metric("gateway_receiving_requests") == 0
    assert address.asked == 1
