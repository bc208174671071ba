import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.__main__ import main
from gateway.cli.table import table
from gateway.identity.keys import load_keys
from gateway.observe.release import RELEASE
from gateway.policy import source
from gateway.testing import issuer

CONFIG: dict[str, Any] = {
    "auth": {"keys_file": "keys.yaml"},
    "engines": [
        {
            "name": "a",
            "url": "http://127.0.0.1:9",
            "pool": "chat",
            "limits": {"max_num_batched_tokens": 2048, "long_prefill_token_threshold": 640, "max_num_seqs": 128},
        }
    ],
    "pools": {"chat": {"models": ["my-model"]}},
}
KEY_HASH = hashlib.sha256(b"gw-made-up").hexdigest()
KEYS = [{"id": "k1", "sha256": KEY_HASH, "service_class": "interactive", "tenant": "acme"}]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, CONFIG, KEYS)
    return tmp_path


def write(folder: Path, config: dict[str, Any], keys: list[dict[str, Any]]) -> None:
    (folder / "gateway.yaml").write_text(yaml.safe_dump(config))
    (folder / "keys.yaml").write_text(yaml.safe_dump({"keys": keys}))


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=30, env=environment())


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}


COMMANDS = [
    *([name] for name in ("serve", "check", "status", "explain", "shadow", "keys", "policies", "bench")),
    *(["policies", action] for action in ("list", "show", "diff", "schema")),
    *(["bench", name] for name in ("run", "compare", "capacity", "calibrate")),
    ["shadow", "report"],
    ["keys", "new"],
    [],
]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_an_example(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*command, "--help"]) == 0
    shown = capsys.readouterr().out
    assert "example" in shown
    assert f"gateway {' '.join(command)}" in shown


@pytest.mark.parametrize(
    "arguments", [["frobnicate"], ["keys"], ["keys", "new"], ["check", "--polcy", "x"], ["policies", "show"]]
)
def test_a_usage_error_exits_with_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert "error:" in capsys.readouterr().err


def test_without_a_command_the_help_is_shown_and_the_status_is_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("usage: gateway")
    assert "examples:" in captured.err


def test_the_version_is_the_releases_and_says_how_the_core_runs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"gateway {RELEASE} (core in plain Python)\n"


def test_a_right_configuration_is_shown_as_tables(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--config", str(folder / "gateway.yaml")]) == 0
    shown = capsys.readouterr().out
    for part in ("short-first", "interactive", "weighted_fair", "http://127.0.0.1:9", "my-model"):
        assert part in shown
    assert "1 x 640 + 128 + 1024 = 1792 <= 2048" in shown
    assert "warning" not in shown
    assert "listen         http://0.0.0.0:8080\nops            http://127.0.0.1:9090\n" in shown
    lines = shown.splitlines()
    assert ["interactive", "256", "200000", "64", "64", "2", "30"] in [line.split() for line in lines]
    assert max(len(line) for line in lines if line.count("  ") > 1) <= 100
    assert shown.endswith("\nOK\n")


def test_what_is_promised_is_shown_with_its_units_or_with_why_not(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check"]) == 0
    assert "not promised: the context length is not known" in capsys.readouterr().out
    write(folder, CONFIG | {"pools": {"chat": {"models": ["my-model"], "max_model_len": 8192}}}, KEYS)
    assert main(["check"]) == 0
    shown = capsys.readouterr().out
    assert "at most 3 engine steps, 254 ms" in shown
    assert "default step model, not measured here" in shown
    assert "prompt tokens a second while sequences are free" in shown
    assert "is above the objective" not in shown, "254 ms are within the 500 ms of interactive"


def test_bounds_of_queues_are_not_shown_where_nothing_waits(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--policy", "passthrough"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if line.startswith("interactive")]
    assert rows[:2] == [["interactive", *"------"], ["interactive", "0", "16", "-", "-"]]


def test_an_address_of_ipv6_has_brackets(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(folder, {**CONFIG, "listen": {"host": "::1", "port": 81}}, KEYS)
    assert main(["check"]) == 0
    assert "listen         http://[::1]:81\n" in capsys.readouterr().out


def test_the_policy_may_be_replaced_on_the_command_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "mine.yaml").write_text("{version: 1, name: mine, service_classes: {interactive: {weight: 1}}}")
    for given, name in (("passthrough", "passthrough"), ("mine.yaml", "mine")):
        assert main(["check", "--policy", given]) == 0
        assert f"policy         {name}," in capsys.readouterr().out


def test_what_is_lost_on_an_engine_is_warned_of_and_is_no_error(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = {**CONFIG["engines"][0], "scheduling": "fcfs", "limits": {**CONFIG["engines"][0]["limits"]}}
    engine["limits"]["max_num_batched_tokens"] = 1500
    config = {**CONFIG, "engines": [engine], "ops": {"host": "0.0.0.0"}}  # noqa: S104
    write(folder, config, [{**KEYS[0], "models": ["gone"]}])
    assert main(["check"]) == 0
    shown = capsys.readouterr().out
    assert "warning: engine a: a step has 1500 tokens" in shown
    assert "warning: ops listens on 0.0.0.0" in shown
    assert "warning: key k1 is for the model gone, which no pool serves." in shown
    assert shown.endswith(f"\nOK, {shown.count('warning: ')} warnings\n")


JWT = {
    "issuer": "https://issuer.example",
    "audience": "gateway",
    "service_class_claim": "gw_class",
    "tenant_claim": "sub",
}


def test_the_issuers_keys_are_shown_and_those_that_cannot_be_used_are_warned_of(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(folder, {**CONFIG, "auth": {"jwt": {**JWT, "jwks_file": "jwks.json"}}}, [])
    other = {**issuer.public_jwk("RS256", "other"), "alg": "RS512"}
    (folder / "jwks.json").write_bytes(issuer.key_set(issuer.public_jwk("ES256", "mine"), other))
    assert main(["check"]) == 0
    shown = capsys.readouterr().out
    assert ["mine", "ES256"] in [line.split() for line in shown.splitlines()]
    assert "warning: of the token issuer's key set, keys[1] is for another algorithm" in shown
    assert "no key is configured" not in shown


def test_a_key_set_without_a_key_is_an_error_that_names_the_file(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(folder, {**CONFIG, "auth": {"jwt": {**JWT, "jwks_file": "jwks.json"}}}, [])
    (folder / "jwks.json").write_text("{}")
    assert main(["check"]) == 2
    assert "jwks.json: has no list of keys. Give the issuer's JSON Web Key Set" in capsys.readouterr().err


def test_keys_behind_an_address_are_asked_for_only_where_the_engines_are(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(folder, {**CONFIG, "auth": {"jwt": {**JWT, "jwks_url": "http://127.0.0.1:9/jwks"}}}, [])
    assert main(["check"]) == 0
    assert "note: the keys behind auth.jwt.jwks_url are fetched when the gateway serves" in capsys.readouterr().out
    assert main(["check", "--engines"]) == 1
    assert "error: auth.jwt.jwks_url: cannot be asked (" in capsys.readouterr().err


def test_open_doors_and_closed_ones_are_warned_of(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(folder, {**CONFIG, "auth": {"anonymous": {"service_class": "batch", "tenant": "anyone"}}}, [])
    assert main(["check"]) == 0
    assert "warning: callers without a key are let in as batch" in capsys.readouterr().out
    write(folder, CONFIG, [])
    assert main(["check"]) == 0
    shown = capsys.readouterr().out
    assert "warning: no key is configured: every request will be refused with 401.\nOK, 1 warning\n" in shown


@pytest.mark.parametrize(
    ("config", "keys", "message"),
    [
        ({**CONFIG, "engnes": []}, KEYS, "gateway.yaml: engnes: is not a known key. Write `engines` if that is meant."),
        ({**CONFIG, "policy": "fastest"}, KEYS, "gateway.yaml: policy: 'fastest' is not a shipped policy. Use one of bounded-fifo"),
        (CONFIG, [{**KEYS[0], "service_class": "gold"}], "keys.yaml: keys[0].service_class: is gold, which the policy does not have."),
        (
            {**CONFIG, "auth": {"anonymous": {"service_class": "gold", "tenant": "t"}}},
            KEYS,
            "gateway.yaml: auth.anonymous.service_class: is gold, which the policy short-first does not have.",
        ),
    ],
)  # fmt: skip
def test_a_configuration_error_is_one_line_and_exit_status_2(
    folder: Path, capsys: pytest.CaptureFixture[str], config: dict[str, Any], keys: list[dict[str, Any]], message: str
) -> None:
    write(folder, config, keys)
    for command in ("check", "serve"):
        assert main([command]) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        assert captured.err.startswith("error: ")
        assert message in captured.err
        assert captured.err.count("\n") == 1


def test_every_fault_of_a_configuration_is_a_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    engine = {**CONFIG["engines"][0], "scheduling": "bogus"}
    write(folder, {**CONFIG, "engines": [engine], "listen": {"port": 70000}}, KEYS)
    assert main(["check"]) == 2
    assert capsys.readouterr().err == (
        "error: gateway.yaml: listen.port: must be at most 65535, not 70000. Give 65535 or less.\n"
        "error: gateway.yaml: engines[0].scheduling: 'bogus' is not one of: priority, fcfs, probe. "
        "Write one of these.\n"
    )


@pytest.mark.parametrize("command", ["check", "serve"])
def test_a_tokenizer_that_cannot_count_is_named_by_its_setting(folder: Path, command: str) -> None:
    (folder / "tokenizer").mkdir()
    pool = {**CONFIG["pools"]["chat"], "tokenizer": {"kind": "local", "path": "tokenizer"}}
    config = {**CONFIG, "listen": {"port": 0}, "ops": {"port": 0}, "pools": {"chat": pool}}
    write(folder, config, KEYS)
    ended = run(sys.executable, "-m", "gateway", command)
    assert ended.returncode == 2
    assert ended.stderr.startswith(
        "error: gateway.yaml: pools.chat.tokenizer.path: tokenizer/tokenizer.json: no such file."
    )
    assert ended.stderr.count("\n") == 1


def test_a_new_key_can_be_pasted_and_works(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["keys", "new", "--service-class", "interactive", "--tenant", "007"]) == 0
    shown = capsys.readouterr().out
    document = yaml.safe_load(shown)
    assert set(document) == {"key", "entry"}
    pasted = next(line.removeprefix("entry: ") for line in shown.splitlines() if line.startswith("entry: "))
    (folder / "keys.yaml").write_text(f"keys:\n  - {pasted}\n")
    (entry,) = load_keys(folder / "keys.yaml", {"interactive"})
    assert entry.sha256 == hashlib.sha256(document["key"].encode()).hexdigest()
    assert (entry.service_class, entry.tenant) == ("interactive", "007")


def test_a_new_key_can_be_added_to_the_file(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "keys.yaml").unlink()
    for tenant in ("007", "acme"):
        assert main(["keys", "new", "--service-class", "batch", "--tenant", tenant, "--append", "keys.yaml"]) == 0
    captured = capsys.readouterr()
    keys = [line.removeprefix("key: ") for line in captured.out.splitlines() if line.startswith("key: ")]
    entries = load_keys(folder / "keys.yaml", {"batch"})
    assert [entry.tenant for entry in entries] == ["007", "acme"]
    assert [entry.sha256 for entry in entries] == [hashlib.sha256(key.encode()).hexdigest() for key in keys]
    assert "entry:" not in captured.out
    assert captured.err == "".join(f"note: the entry {entry.id} is in keys.yaml.\n" for entry in entries)


def test_no_key_is_shown_where_its_entry_could_not_be_added(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    new = ["keys", "new", "--service-class", "batch", "--tenant", "t", "--append", "absent/keys.yaml"]
    assert main(new) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: absent/keys.yaml: cannot be written")


@pytest.mark.parametrize(("name", "noted"), [("interactive", False), ("gold", True)])
def test_a_class_that_no_shipped_policy_has_is_noted(
    name: str, noted: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["keys", "new", "--service-class", name, "--tenant", "acme"]) == 0
    captured = capsys.readouterr()
    assert set(yaml.safe_load(captured.out)) == {"key", "entry"}
    note = "note: no shipped policy has the class gold (they have batch, interactive, standard): yours must have it.\n"
    assert captured.err == (note if noted else "")


@pytest.mark.parametrize("tenant", ["a b", "", "none", "ä"])
def test_a_key_for_an_unsafe_name_is_refused(tenant: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["keys", "new", "--service-class", "interactive", "--tenant", tenant]) == 2
    assert "is not a valid name" in capsys.readouterr().err


def test_policies_are_listed_shown_and_described(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["policies"]) == 0
    listed = capsys.readouterr().out
    assert main(["policies", "list"]) == 0
    assert capsys.readouterr().out == listed
    for name in source.names():
        assert f"\n{name} " in listed
    assert main(["policies", "show", "short-first"]) == 0
    assert capsys.readouterr().out == source.text("short-first")
    assert main(["policies", "schema"]) == 0
    assert json.loads(capsys.readouterr().out)["title"] == "Policy"
    assert main(["policies", "show", "nope"]) == 2
    assert "is not a shipped policy" in capsys.readouterr().err


def test_the_bench_is_named_where_its_modules_are_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Absent:
        def find_spec(self, name: str, *_: object) -> None:
            if name == "bench.cli":
                raise ModuleNotFoundError(name="rich")

    monkeypatch.delitem(sys.modules, "bench.cli", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Absent(), *sys.meta_path])
    assert main(["bench", "run", "--any", "thing"]) == 2
    assert "gateway bench needs the module rich" in capsys.readouterr().err


def test_the_module_runs_as_a_program(folder: Path) -> None:
    checked = run(sys.executable, "-m", "gateway", "check")
    assert (checked.returncode, checked.stderr) == (0, "")
    assert "short-first" in checked.stdout
    (folder / "gateway.yaml").unlink()
    missing = run(sys.executable, "-m", "gateway", "serve")
    assert (missing.returncode, missing.stdout) == (2, "")
    assert missing.stderr == "error: gateway.yaml: does not exist. Create it, or correct the path.\n"


def test_serve_runs_until_it_is_told_to_end(folder: Path) -> None:
    here = {"host": "127.0.0.1", "port": 0}
    write(folder, {**CONFIG, "listen": here, "ops": here, "drain": {"settle_s": 0, "deadline_s": 1}}, KEYS)
    command = [sys.executable, "-m", "gateway", "serve"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment()) as serving:
        assert serving.stdout is not None
        assert any('"listening"' in line for line in serving.stdout)
        serving.send_signal(signal.SIGTERM)
        assert serving.wait(timeout=30) == 0


def test_the_bench_gets_its_own_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "run", "--help"]) == 0
    assert "gateway bench run" in capsys.readouterr().out
    assert main(["bench", "run", "--unheard-of"]) == 2


@pytest.mark.parametrize("name", ["emulate", "demo"])
def test_what_the_bench_adds_to_the_commands_has_its_own_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([name, "--help"]) == 0
    assert f"  gateway {name} " in capsys.readouterr().out
    assert main([name, "--unheard-of"]) == 2
    assert f"gateway {name}: error" in capsys.readouterr().err


def test_an_emulator_whose_port_is_taken_says_so_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["emulate", "--port", str(port)]) == 2
    said = f"gateway emulate: --port: 127.0.0.1:{port} cannot be used (Address already in use). Give another, or 0.\n"
    assert capsys.readouterr().err == said


def test_a_demonstration_of_an_unknown_policy_starts_nothing(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--policy", "nope"]) == 2
    said = capsys.readouterr().err
    for name in source.names():
        assert (name in said.partition("Use one of")[2]) == (name != "passthrough")
    assert not (folder / "gateway-demo").exists()


def test_a_reader_that_leaves_causes_no_traceback() -> None:
    assert run("/bin/sh", "-c", f"{sys.executable} -m gateway policies schema | true").stderr == ""


def test_a_table_aligns_text_left_and_numbers_right() -> None:
    assert table(["name", "n", "w"], [["a", 5, 0.5], ["long", 1234, None]]) == (
        "name     n    w\na        5  0.5\nlong  1234    -"
    )


def calibrated(folder: Path, **changes: Any) -> None:
    """A configuration whose engine has a calibration file."""

    def estimate(value: float) -> dict[str, float]:
        return {"value": value, "low": value, "high": value}

    said = {
        "version": 1,
        "model": "my-model",
        "made_at": "2026-01-01T00:00:00Z",
        "max_num_batched_tokens": 2048,
        **{name: estimate(1e-5) for name in ("base_s", "per_token_s", "per_token_context_s", "request_s")},
        "error": {"median": 0.02, "p95": 0.1},
        "requests": 40,
        **changes,
    }
    (folder / "a.yaml").write_text(yaml.safe_dump(said))
    write(folder, {**CONFIG, "engines": [{**CONFIG["engines"][0], "calibration": "a.yaml"}]}, KEYS)


def test_a_calibration_of_this_engine_is_checked_without_a_word(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    calibrated(folder)
    assert main(["check"]) == 0
    assert "calibration" not in capsys.readouterr().out


def test_a_calibration_of_another_engine_is_warned_of(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    calibrated(folder, model="other", max_num_batched_tokens=8192)
    assert main(["check"]) == 0
    shown = capsys.readouterr().out
    assert "warning: engine a: its calibration is of the model other; its pool serves my-model." in shown
    assert "its calibration is of max_num_batched_tokens 8192; its limits state 2048" in shown


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"per_token_s": None}, "per_token_s"),
        ({"base_ms": 3}, "base_ms: is not a known key"),
        ({"base_s": {"value": 3.0, "low": 4.0, "high": 5.0}}, "base_s.value: lies outside its interval"),
        ({"base_s": {"value": 30.0, "low": 30.0, "high": 30.0}}, "base_s.value: is above 10 s"),
        ({"per_token_s": {"value": 0.0, "low": 0.0, "high": 0.0}}, "per_token_s.value: is 0"),
        ({"version": 2}, "version"),
    ],
)
def test_a_faulty_calibration_is_an_error_that_names_file_and_key(
    folder: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, Any], fault: str
) -> None:
    calibrated(folder, **changes)
    assert main(["check"]) == 2
    assert f"error: a.yaml: {fault}" in capsys.readouterr().err


def test_policies_diff_shows_each_value_that_differs_and_nothing_else(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = source.text("short-first")
    (folder / "mine.yaml").write_text(f"# other words\n{text.replace('long_prefills_max: 1', 'long_prefills_max: 3')}")
    assert main(["policies", "diff", "short-first", "./mine.yaml"]) == 0
    header, row = capsys.readouterr().out.splitlines()
    assert header.split() == ["key", "short-first", "./mine.yaml"]
    assert row.split() == ["admission.long_prefills_max", "1", "3"]
    assert main(["policies", "diff", "short-first", "short-first"]) == 0
    assert capsys.readouterr().out == "They do not differ.\n"
    assert main(["policies", "diff", "short-first", "bounded-fifo"]) == 0
    out = capsys.readouterr().out
    assert "\nadmission.kind " in out
    assert main(["policies", "diff", "short-first", "nothing-like-it"]) == 2
