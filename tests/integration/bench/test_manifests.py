"""`gateway bench manifest`, before a real gateway and two embedded engines: made, verified, rehearsed, rolled back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.request import Request

import pytest
import yaml

from bench import cli
from bench.direct import direct
from bench.manifest import heard, rollback, sealed
from bench.manifest.ops import Place
from bench.manifest.schema import HealthProbe
from bench.own_processes import HOST, free_ports, running
from bench.simulation.emulator.vocabulary import FOLDER

STATED: dict[str, Any] = {
    "version": 1,
    "gateway_config": "gateway.yaml",
    "name": "chat",
    "owner": "on call",
    "deployment_revision": "chart 1",
    "image_digest": "sha256:" + "1" * 64,
    "model_revision": "0" * 40,
    "tokenizer_revision": "0" * 40,
    "speculation": "none",
    "args": {
        "max_num_batched_tokens": 2048,
        "max_num_seqs": 16,
        "long_prefill_token_threshold": 0,
        "scheduling_policy": "fcfs",
        "dtype": "float32",
        "quantization": None,
        "tensor_parallel_size": 1,
        "enforce_eager": True,
    },
    "health_probe": {"path": "/health", "within_s": 30},
    "capacity": {"requests_per_s": 5, "evidence": "none: a test"},
    "drain_deadline_s": 0.5,
    "abort": {"error_share_max": 0.5},
}


@dataclass(frozen=True)
class Served:
    """A gateway before the engines a and b, of which a is the baseline's."""

    folder: Path
    url: str
    ops_url: str
    config: dict[str, Any]

    @property
    def file(self) -> Path:
        return self.folder / "gateway.yaml"

    def states(self, policy: str, **weights: float) -> None:
        """What gateway.yaml says, in force."""
        engines = [
            {**engine, "weight": weights[engine["name"]]}
            for engine in self.config["engines"]
            if engine["name"] in weights
        ]
        self.file.write_text(yaml.safe_dump({**self.config, "policy": policy, "engines": engines}))
        self.asks("/api/reload", {})

    def asks(self, path: str, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        with direct.open(Request(f"{self.ops_url}{path}", data), timeout=60) as answer:  # noqa: S310 - our own
            assert answer.status == 200

    def state(self) -> Any:
        with direct.open(f"{self.ops_url}/api/state?promises=off", timeout=60) as answer:
            return json.load(answer)

    def draft(self, **said: Any) -> str:
        path = self.folder / "draft.yaml"
        path.write_text(yaml.safe_dump(said))
        return str(path)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("manifests")
    a, b, port, ops = free_ports(4)
    config = {
        "listen": {"host": HOST, "port": port},
        "ops": {"host": HOST, "port": ops},
        "auth": {"anonymous": {"service_class": "interactive", "tenant": "t"}},
        "engines": [
            {"name": name, "url": f"http://{HOST}:{of}", "pool": "chat", "scheduling": "fcfs", "calibration": "off"}
            for name, of in (("a", a), ("b", b))
        ],
        "pools": {"chat": {"models": ["emulated"], "tokenizer": {"kind": "local", "path": str(FOLDER)}}},
    }
    (folder / "gateway.yaml").write_text(yaml.safe_dump({**config, "policy": "passthrough"}))
    with ExitStack() as stack:
        for name, of, sequences in (("a", a, "16"), ("b", b, "32")):
            words = ["emulate", "--profile", "cpu", "--port", str(of), "--max-num-seqs", sequences]
            stack.enter_context(running(words, folder / f"{name}.log", f"http://{HOST}:{of}/health"))
        ops_url = f"http://{HOST}:{ops}"
        words = ["serve", "--config", str(folder / "gateway.yaml")]
        stack.enter_context(running(words, folder / "gateway.log", f"{ops_url}/readyz"))
        yield Served(folder, f"http://{HOST}:{port}", ops_url, config)


def manifest(*words: str | Path) -> int:
    return cli.main(["manifest", *map(str, words)])


@pytest.mark.timeout(240)  # two engines, a gateway, and a load of four seconds on a machine that may be busy
def test_a_rollback_is_rehearsed_undone_and_then_made(
    served: Served, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = tmp_path / "kept"
    served.states("short-first", a=1)
    assert manifest("create", served.draft(version=1, gateway_config="gateway.yaml"), "--out", kept) == 2
    assert "drain_deadline_s: how long" in capsys.readouterr().err
    assert manifest("create", served.draft(**STATED), "--out", kept) == 0
    (baseline,) = kept.iterdir()
    baseline_yaml = served.file.read_bytes()

    served.states("passthrough", a=0, b=1)
    change = {"version": 1, "gateway_config": "gateway.yaml", "name": "next", "args": {"max_num_seqs": 32}}
    assert manifest("create", served.draft(**change), "--baseline", baseline, "--out", kept) == 0
    (candidate,) = (each for each in kept.iterdir() if each != baseline)
    candidate_yaml = served.file.read_bytes()
    assert manifest("diff", baseline, candidate) == 0
    assert "-policy: passthrough\n+policy: short-first" in capsys.readouterr().out
    assert manifest("verify", candidate, "--live") == 0
    assert manifest("verify", baseline, "--live") == 6
    assert "gateway.policy" in capsys.readouterr().out

    served.asks("/api/route", {"pool": "chat", "weights": {"a": 1, "b": 3}})  # a canary that goes on afterwards
    words = ["rollback", baseline, "--rehearse", "--candidate", candidate, "--base-url", served.url]
    words += ["--tokenizer", FOLDER, "--result-dir", tmp_path / "runs", "--mix", "100/0", "--short-tokens", "64"]
    words += ["--output-tokens", "300", "--request-rate", "4", "--before", "2", "--after", "2"]
    code = manifest(*words)
    printed = capsys.readouterr()
    (folder,) = (tmp_path / "runs").iterdir()
    assert served.file.read_bytes() == candidate_yaml == (folder / "found-gateway.yaml").read_bytes()
    pool = served.state()["pools"]["chat"]
    assert (pool["shifted"], pool["engines"]["a"]["weight"], pool["engines"]["b"]["weight"]) == (True, 1, 3)
    evidence = json.loads((folder / "rollback.json").read_text())
    assert evidence["manifest_sha256"] == yaml.safe_load(baseline.read_text())["sha256"]
    if code == 4:  # the machine that runs the tests was too busy for the client: nothing was shown
        assert any("INVALID" in each for each in evidence["failures"]) and not evidence["held"]
    else:
        assert (code, evidence["held"], evidence["failures"]) == (0, True, []), printed
        figures = evidence["figures"]
        assert figures["lost"] == 0 and set(figures["new_after_switch"]) == {"a"}
        streams = figures["streams"]
        assert streams["ended_at_deadline"] == streams["ended_by_the_gateway"] > 0
        assert set(streams["ended_how"]) <= {"failed:in_band_draining", "refused:draining"}
        assert streams["finished"] + streams["ended_at_deadline"] == streams["open_at_switch"]

    capsys.readouterr()
    assert manifest("rollback", baseline) == 0
    said = capsys.readouterr()
    assert "is in force" in said.out
    for line in ("policy: passthrough until now, short-first again", "engines.a.weight: 0 until now, 1 again"):
        assert f"    {line}" in (said.out + said.err).splitlines()
    assert served.file.read_bytes() == baseline_yaml
    assert served.state()["policy"]["name"] == "short-first"
    assert manifest("verify", baseline, "--live") == 0
    (copy,) = served.folder.glob("gateway.yaml.before-*")
    assert copy.read_bytes() == candidate_yaml


def test_what_a_gateway_does_not_take_changes_nothing(
    served: Served, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    served.states("passthrough", a=1)
    assert manifest("create", served.draft(**STATED), "--out", tmp_path) == 0
    (baseline,) = tmp_path.glob("chat-*")
    served.states("short-first", b=1)
    found = served.file.read_bytes()
    change = {"version": 1, "gateway_config": "gateway.yaml", "name": "cold", "target": ["b"]}
    assert manifest("create", served.draft(**change), "--baseline", baseline, "--out", tmp_path) == 0
    (cold,) = tmp_path.glob("cold-*")
    capsys.readouterr()
    words = ["rollback", baseline, "--rehearse", "--candidate", cold, "--base-url", served.url, "--tokenizer", FOLDER]
    assert manifest(*words, "--result-dir", tmp_path / "runs") == 2
    assert "only what is kept warm can be gone back to" in capsys.readouterr().err
    assert served.file.read_bytes() == found and served.state()["policy"]["name"] == "short-first"

    # Where the gateway does not find the baseline up, nobody's stream is ended for it; and a broken file is no hindrance.
    made = sealed.load(baseline)
    ghost = made.model_copy(
        update={
            "engines": {"ghost": made.engines["a"]},
            "routing": made.routing.model_copy(update={"target": ["ghost"]}),
        }
    )
    served.file.write_bytes(b"engines: [")
    said: list[str] = []
    assert not rollback.perform(ghost, Place(served.ops_url, served.file), {}, said.append)
    assert "ghost: not up at the gateway. Nothing is ended" in said[-1]
    assert any("all of it: what is there now is no gateway.yaml" in each for each in said)
    served.file.write_bytes(found)
    for copy in served.folder.glob("gateway.yaml.before-*"):
        copy.unlink()

    baseline.chmod(0o644)
    baseline.write_bytes(baseline.read_bytes().replace(b"on call", b"no call"))
    for act in (["verify"], ["rollback"]):
        assert manifest(*act, baseline) == 5
    assert served.file.read_bytes() == found


class Guarded(BaseHTTPRequestHandler):
    """As vLLM with a key: its models are for those who have it."""

    def do_GET(self) -> None:
        is_open = self.path != "/v1/models" or self.headers["Authorization"] == "Bearer gw-1"
        self.send_response(200 if is_open else 401)
        self.end_headers()
        self.wfile.write(b'{"data": [{"id": "m"}]}')

    def log_message(self, *_: object) -> None:
        pass


def test_an_engine_that_wants_a_key_is_asked_with_it() -> None:
    with ThreadingHTTPServer((HOST, 0), Guarded) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        url, probe = f"http://{HOST}:{server.server_port}", HealthProbe(path="/health", within_s=30)
        assert heard.engine(url, probe).models == ()
        assert heard.engine(url, probe, key="gw-1").models == ("m",)
        server.shutdown()
