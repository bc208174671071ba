"""What `make run` says: commands that can be pasted as they stand, and words where an engine cannot be used."""

from __future__ import annotations

import asyncio
import shlex
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from bench.cli import _parser as bench_parser
from deploy import run
from deploy.engine.home import EngineError
from deploy.first_files import Addresses, Upstream
from deploy.run import UpstreamError
from deploy.welcome import EMBEDDED, LIMITS, Served, welcome

SERVED = Served(
    addresses=Addresses("http://127.0.0.1:8080", "http://127.0.0.1:9090"),
    upstream=Upstream(
        url="http://127.0.0.1:8000",
        models=("tiny",),
        tokenizer_path=Path("/models/my tokenizer"),
        scheduling="priority",
        limits={"max_num_seqs": 128},
        api_key_env=None,
    ),
    configuration=Path("/here/var/gateway.yaml"),
    keys_file=Path("/here/var/keys.yaml"),
    keys={"KEY": "gw-one", "KEY_BATCH": "gw-two"},
    command=Path("/here/.venv/bin/gateway"),
    has_limits=True,
    is_embedded=False,
)
CURL = (
    'curl http://127.0.0.1:8080/v1/chat/completions -H "Authorization: Bearer $KEY" '
    '-H "Content-Type: application/json" -d \'{"model": "tiny", "messages": [{"role": "user", "content": "hello"}], '
    '"max_tokens": 16, "stream": true}\''
)


def test_the_keys_come_first_then_the_request_then_the_measurement() -> None:
    lines = welcome(SERVED).splitlines()
    at = lines.index("export KEY=gw-one")
    assert lines[at + 1 : at + 3] == ["export KEY_BATCH=gw-two", CURL]
    assert lines[at + 3].startswith("/here/.venv/bin/gateway bench run ")
    assert "/here/.venv/bin/gateway" in "".join(lines[:at])
    assert "limits" not in welcome(SERVED)


def test_the_measurement_is_one_that_the_bench_takes() -> None:
    words = shlex.split(welcome(SERVED).splitlines()[-1])
    options = bench_parser().parse_args(words[2:])
    assert options.tokenizer == Path("/models/my tokenizer")
    assert options.credential == ["short=KEY", "long=KEY_BATCH"]
    assert (options.long_tokens, options.output_tokens) == (2048, 16)
    assert (options.request_rate, options.num_prompts) == (2, 20)


def test_keys_that_were_shown_before_are_not_shown_as_empty_ones() -> None:
    shown = welcome(replace(SERVED, keys={}))
    assert "export" not in shown
    assert "keys new --service-class interactive --tenant me --append /here/var/keys.yaml" in shown
    assert CURL in shown


def test_an_engine_whose_flags_are_not_known_is_named_in_one_line_with_what_to_paste() -> None:
    (line,) = [line for line in welcome(replace(SERVED, has_limits=False)).splitlines() if "limits" in line]
    assert f"`{LIMITS}`" in line
    assert "/here/var/gateway.yaml" in line


def test_the_embedded_engine_is_called_what_it_is() -> None:
    assert EMBEDDED not in welcome(SERVED)
    assert EMBEDDED in welcome(replace(SERVED, is_embedded=True)).splitlines()


def test_a_taken_port_is_said_before_anything_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        monkeypatch.setenv("ENGINE_PORT", str(port))
        with pytest.raises(EngineError, match=f"ENGINE_URL=http://127.0.0.1:{port}"):
            run._with_embedded_engine()


def test_a_refused_connection_is_said_in_words() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(UpstreamError) as caught:
            run._given(url)
    assert str(caught.value) == (
        f"ENGINE_URL={url} refuses the connection: is the engine started, and is this its port?"
    )


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"HTTP/1.1 401 No\r\n\r\n", "answers /v1/models with 401: set ENGINE_API_KEY to its key"),
        (b"HTTP/1.1 404 No\r\n\r\n", "answers /v1/models with 404: give scheme, host and port alone"),
        (b"HTTP/1.1 503 No\r\n\r\n", "answers /v1/models with 503: is it a vLLM server, and is it ready?"),
        (b"HTTP/1.1 200 Yes\r\n\r\n[]", "does not answer /v1/models as vLLM does"),
        (b"HTTP/1.1 200 Yes\r\n\r\nhello", "does not answer /v1/models as vLLM does"),
        (b"220 mail ready\r\n", "does not answer /v1/models as vLLM does"),
    ],
)
async def test_an_answer_without_models_is_said_in_words(answer: bytes, words: str) -> None:
    async def answered(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    async with await asyncio.start_server(answered, "127.0.0.1", 0) as server:
        host, port = server.sockets[0].getsockname()
        with pytest.raises(UpstreamError, match=words.replace("?", r"\?")):
            await asyncio.to_thread(run._given, f"http://{host}:{port}")


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "nonsense"])
def test_what_is_no_address_is_said_in_words(url: str) -> None:
    with pytest.raises(UpstreamError, match=r"is it the address of a vLLM server, like http://host:8000\?|cannot be"):
        run._given(url)
