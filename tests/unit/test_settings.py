import sys
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway import settings as settings_file
from gateway.core.types import EngineLimits, LengthClass
from gateway.settings import EngineTokenizer, EstimateTokenizer, LocalTokenizer, Ops, Settings
from gateway.strict_yaml import ConfigError
from gateway.wire.fields import OPERATOR_MEMBERS

MINIMAL = """
auth: {anonymous: {service_class: batch, tenant: anyone}}
engines: [{name: a, url: "http://127.0.0.1:8000", pool: chat}]
pools: {chat: {models: [my-model]}}
"""

FULL = """
listen: {host: 0.0.0.0, port: 8080}
ops: {host: 127.0.0.1, port: 9090, token_file: null}
policy: short-first
auth:
  keys_file: keys.yaml
  anonymous: {service_class: batch, tenant: anonymous}
engines:
  - name: a
    url: http://127.0.0.1:8000
    api_key_env: ENGINE_A_KEY
    pool: chat-eu
    scheduling: probe
    priority_carrier: auto
    calibration: probe
    limits: {max_num_batched_tokens: 2048, long_prefill_token_threshold: 640, max_num_seqs: 128, kv_tokens: auto}
    timeouts: {connect_s: 5, first_byte_s: 120, idle_s: 60}
pools:
  chat-eu: {models: [my-model], region: eu, max_model_len: auto, tokenizer: {kind: local, path: ./tokenizer, revision: abc}}
limits: {body_bytes_max: 33554432, inflated_bytes_max: 67108864, header_bytes_max: 32768, connections_max: 10000,
         body_read_s: 30, client_stall_s: 60, keepalive_s: 75}
engine_fields: {allow: [logits_processors]}
drain: {settle_s: 5, deadline_s: 30}
"""

JWT = {
    "issuer": "https://issuer.example",
    "audience": "gateway",
    "jwks_url": "https://issuer.example/jwks",
    "service_class_claim": "gw_class",
    "tenant_claim": "sub",
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "keys.yaml").write_text("keys: []")
    (tmp_path / "tokenizer").mkdir()
    monkeypatch.setenv("ENGINE_A_KEY", "upstream-secret")
    return tmp_path


def load(folder: Path, text: str) -> Settings:
    file = folder / "gateway.yaml"
    file.write_text(text)
    return settings_file.load(file)


def changed(text: str, *changes: tuple[str, Any]) -> str:
    """`text` with members set (or removed, by a value of ...) at paths such as `engines.0.url`."""
    document = yaml.safe_load(text)
    for path, value in changes:
        *places, last = path.split(".")
        here = document
        for place in places:
            here = here[int(place)] if isinstance(here, list) else here[place]
        if value is ...:
            del here[last]
        else:
            here[last] = deepcopy(value)
    return yaml.safe_dump(document)


def refusal_of(folder: Path, text: str) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        load(folder, text)
    assert caught.value.file == str(folder / "gateway.yaml")
    return caught.value


def test_every_documented_setting_is_read(folder: Path) -> None:
    read = load(folder, FULL)
    assert (read.listen.port, read.ops.port, read.ops.token_file) == (8080, 9090, None)
    assert read.auth.keys_file == folder / "keys.yaml"
    (engine,) = read.engines
    assert engine.limits.stated() == EngineLimits(2048, 640, 128, None)
    assert (engine.timeouts.connect_s, engine.timeouts.first_byte_s, engine.timeouts.idle_s) == (5, 120, 60)
    pool = read.pools["chat-eu"]
    assert (pool.models, pool.region, pool.max_model_len) == (("my-model",), "eu", None)
    assert pool.tokenizer == LocalTokenizer(kind="local", path=folder / "tokenizer", revision="abc")
    assert read.engine_fields.allow == frozenset({"logits_processors"})


def test_the_defaults_are_the_documented_ones(folder: Path) -> None:
    stated = load(folder, changed(FULL, ("engine_fields.allow", []), ("engines.0.limits", {})))
    default = load(folder, MINIMAL)
    assert default.listen == stated.listen
    assert default.ops == stated.ops
    assert default.policy == stated.policy
    assert default.limits == stated.limits
    assert default.engine_fields == stated.engine_fields
    assert default.drain == stated.drain
    assert default.engines[0].timeouts == stated.engines[0].timeouts
    assert default.engines[0].limits == stated.engines[0].limits
    assert default.engines[0].scheduling == "probe"
    assert default.engines[0].priority_carrier == "auto"
    assert default.pools["chat"].tokenizer == EngineTokenizer()


def test_the_engines_key_comes_from_the_environment_and_is_not_in_the_settings(folder: Path) -> None:
    read = load(folder, FULL)
    assert read.engines[0].api_key() == "upstream-secret"
    assert "upstream-secret" not in repr(read)
    assert load(folder, MINIMAL).engines[0].api_key() is None


def test_engines_are_found_by_pool(folder: Path) -> None:
    read = load(folder, FULL)
    assert [engine.name for engine in read.engines_of("chat-eu")] == ["a"]
    assert read.engines_of("other") == ()


def test_a_closing_slash_of_an_engines_address_is_dropped(folder: Path) -> None:
    read = load(folder, changed(MINIMAL, ("engines.0.url", "https://engine.internal:8443/")))
    assert read.engines[0].url == "https://engine.internal:8443"


def test_a_policy_file_is_relative_to_the_configurations_folder(folder: Path) -> None:
    (folder / "mine.yaml").write_text("version: 1")
    assert load(folder, changed(MINIMAL, ("policy", "mine.yaml"))).policy == str(folder / "mine.yaml")
    assert load(folder, changed(MINIMAL, ("policy", "passthrough"))).policy == "passthrough"


@pytest.mark.parametrize(
    ("tokenizer", "model"),
    [({"kind": "engine"}, EngineTokenizer()), ({"kind": "estimate"}, EstimateTokenizer(kind="estimate"))],
)
def test_every_kind_of_tokenizer_is_read(folder: Path, tokenizer: dict[str, str], model: object) -> None:
    assert load(folder, changed(MINIMAL, ("pools.chat.tokenizer", tokenizer))).pools["chat"].tokenizer == model


@pytest.mark.parametrize(
    ("host", "is_loopback"),
    [
        ("127.0.0.1", True),
        ("127.8.8.8", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),  # noqa: S104
        ("ops.lan", False),
    ],
)
def test_loopback_is_recognised(host: str, is_loopback: bool) -> None:
    assert Ops(host=host).is_loopback is is_loopback


@pytest.mark.parametrize("zero", ["listen.port", "limits.keepalive_s", "drain.settle_s"])
def test_a_zero_that_means_something_is_honoured(folder: Path, zero: str) -> None:
    section, key = zero.split(".")
    assert getattr(getattr(load(folder, changed(FULL, (zero, 0))), section), key) == 0


def test_a_short_deadline_alone_needs_no_word_on_settling(folder: Path) -> None:
    assert load(folder, changed(FULL, ("drain", {"deadline_s": 1}))).drain.deadline_s == 1


@pytest.mark.parametrize(("settle_s", "deadline_s"), [(0, 0), (5, 5), (0, 30)])
def test_settling_may_fill_the_whole_time_to_the_deadline(folder: Path, settle_s: int, deadline_s: int) -> None:
    drain = {"settle_s": settle_s, "deadline_s": deadline_s}
    read = load(folder, changed(FULL, ("drain", drain))).drain
    assert (read.settle_s, read.deadline_s) == (settle_s, deadline_s)


@pytest.mark.parametrize(
    ("path", "key_path"),
    [
        ("limits.body_bytes_max", "limits.body_bytes_max"),
        ("limits.header_bytes_max", "limits.header_bytes_max"),
        ("limits.connections_max", "limits.connections_max"),
        ("limits.body_read_s", "limits.body_read_s"),
        ("limits.client_stall_s", "limits.client_stall_s"),
        ("engines.0.limits.max_num_seqs", "engines[0].limits.max_num_seqs"),
        ("engines.0.limits.kv_tokens", "engines[0].limits.kv_tokens"),
        ("engines.0.timeouts.connect_s", "engines[0].timeouts.connect_s"),
        ("engines.0.timeouts.first_byte_s", "engines[0].timeouts.first_byte_s"),
        ("engines.0.timeouts.idle_s", "engines[0].timeouts.idle_s"),
        ("pools.chat-eu.max_model_len", "pools.chat-eu.max_model_len"),
    ],
)
def test_a_zero_that_would_close_everything_is_refused(folder: Path, path: str, key_path: str) -> None:
    refusal = refusal_of(folder, changed(FULL, (path, 0)))
    assert refusal.key_path == key_path
    assert "must be" in refusal.problem


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ([("auth", ...)], "auth: is missing"),
        ([("auth", {})], "auth: lets nobody in. Set keys_file"),
        ([("auth.jwt", {})], "auth.jwt.issuer: is missing"),
        ([("auth.jwt", JWT), ("auth.jwt.jwks_url", ...)], "auth.jwt: has no signing keys. Set jwks_file or jwks_url"),
        ([("auth.jwt", JWT), ("auth.jwt.jwks_file", "keys.yaml")], "auth.jwt.jwks_url: is set beside jwks_file. Keep one of the two"),
        ([("auth.jwt", JWT), ("auth.jwt.jwks_url", ...), ("auth.jwt.jwks_file", "gone")], "gone does not exist. Copy the issuer's key set there"),
        ([("auth.jwt", JWT), ("auth.jwt.audience", "")], "auth.jwt.audience: is empty"),
        ([("auth.jwt", JWT), ("auth.jwt.secret", "x")], "auth.jwt.secret: is not a known key"),
        ([("auth.jwt", JWT), ("auth.jwt.jwks_url", "http://issuer.example/jwks")], "auth.jwt.jwks_url: is not https. Use https, or http to this machine"),
        ([("auth.jwt", JWT), ("auth.jwt.jwks_url", "http://127.0.0.1.example/jwks")], "auth.jwt.jwks_url: is not https"),
        ([("auth.jwt", JWT), ("auth.jwt.jwks_url", "file:///etc/jwks")], "auth.jwt.jwks_url: is not an https address"),
        ([("auth.jwt", JWT), ("auth.jwt.jwks_url", "https://user:word@issuer.example/jwks")], "auth.jwt.jwks_url: holds a user name"),
        ([("auth.keys_file", "gone.yaml")], "gone.yaml does not exist. Create it with `gateway keys new --append`"),
        ([("ops.token_file", "token")], "token does not exist. Write a long random word there, or correct the path."),
        ([("pools.chat-eu.tokenizer.path", "gone")], "pools.chat-eu.tokenizer.path: "),
        ([("policy", "gone.yaml")], "policy: "),
        ([("engines", [])], "engines: is empty"),
        ([("engines.0.pool", "chat-us")], "engines[0].pool: names the pool chat-us, which is not among pools. Use one of: chat-eu"),
        ([("engines.0.name", "ä")], "engines[0].name: is not a valid name"),
        ([("engines.0.url", "127.0.0.1:8000")], "engines[0].url: is not an http or https address. Write it like http://"),
        ([("engines.0.url", "http://[::1")], "engines[0].url: is not an http or https address"),
        ([("engines.0.url", "http://h:99999")], "engines[0].url: is not an http or https address"),
        ([("engines.0.url", "http://a b")], "engines[0].url: is not an http or https address"),
        ([("engines.0.url", "http://h/v1")], "engines[0].url: has a path or a query after the host. Give scheme, host and port only"),
        ([("engines.0.url", "http://h?x")], "engines[0].url: has a path or a query"),
        ([("engines.0.url", "http://u:hunter2@h")], "engines[0].url: holds a user name or password"),
        ([("engines.0.scheduling", "fifo")], "engines[0].scheduling: 'fifo' is not one of: priority, fcfs, probe. Write one of these"),
        ([("engines.0.priority_carrier", "query")], "engines[0].priority_carrier: "),
        ([("engines.0.limits.kv_tokens", "many")], "engines[0].limits.kv_tokens: should be a whole number, not text"),
        ([("engines.0.api_key_env", "NOT_SET_ANYWHERE")], "engines[0].api_key_env: names an environment variable that is not set"),
        ([("engines.0.api_key_env", "A B")], "engines[0].api_key_env: "),
        ([("pools.chat-eu.models", [])], "pools.chat-eu.models: is empty"),
        ([("pools.chat-eu.models", ["a b"])], "pools.chat-eu.models[0]: is not a valid model name"),
        ([("pools.chat-eu.models", ["m", "m"])], "pools.chat-eu.models[1]: is served by the pool chat-eu already"),
        ([("pools.spare", {"models": ["other"]})], "pools.spare: has no engine. Give an engine `pool: spare`, or remove it."),
        ([("pools.none", {"models": ["other"]})], "pools.none: is not a valid name"),
        ([("pools.chat-eu.tokenizer", {"kind": "magic"})], "pools.chat-eu.tokenizer.kind: 'magic' is not one of: local, engine, estimate"),
        ([("pools.chat-eu.tokenizer", {"kind": "local"})], "pools.chat-eu.tokenizer.path: is missing"),
        ([("ops.port", 8080)], "ops.port: is the port of listen too"),
        ([("limits.inflated_bytes_max", 1000)], "limits.inflated_bytes_max: is below limits.body_bytes_max"),
        ([("engine_fields.allow", ["priority"])], "engine_fields.allow"),
        ([("engine_fields.allow", ["prompt_embeds"])], "engine_fields.allow"),
        ([("listen.port", 70000)], "listen.port: must be at most 65535, not 70000"),
        ([("listen.port", "8080")], "listen.port: should be a whole number, not text"),
        ([("drain.settle_s", -1)], "drain.settle_s: must be at least 0, not -1"),
        ([("drain.settle_s", 31)], "drain.settle_s: is 31, above drain.deadline_s (30). Lower it, or raise drain.deadline_s"),
    ],
)  # fmt: skip
def test_a_setting_that_cannot_be_honoured_is_refused(
    folder: Path, changes: list[tuple[str, Any]], message: str
) -> None:
    shown = str(refusal_of(folder, changed(FULL, *changes)))
    assert message in shown
    assert "hunter2" not in shown


def test_engines_have_names_and_addresses_of_their_own(folder: Path) -> None:
    second = {"name": "b", "url": "http://127.0.0.1:8001", "pool": "chat"}
    first = yaml.safe_load(MINIMAL)["engines"][0]
    for key, value in (("name", "a"), ("url", "http://127.0.0.1:8000/")):
        refusal = refusal_of(folder, changed(MINIMAL, ("engines", [first, {**second, key: value}])))
        assert refusal.key_path == f"engines[1].{key}"
        assert refusal.problem == f"is the same as engines[0].{key}"


def test_two_pools_may_not_serve_the_same_model(folder: Path) -> None:
    engines = [{"name": n, "url": f"http://{n}", "pool": n} for n in ("eu", "us")]
    pools = {"eu": {"models": ["m"]}, "us": {"models": ["n", "m"]}}
    refusal = refusal_of(folder, changed(MINIMAL, ("engines", engines), ("pools", pools)))
    assert (refusal.key_path, refusal.problem) == ("pools.us.models[1]", "is served by the pool eu already")


def of_lengths(**pools: dict[str, Any]) -> str:
    """gateway.yaml with these pools of the model m, an engine in each."""
    engines = [{"name": name, "url": f"http://{name}", "pool": name} for name in pools]
    stated = {name: {"models": ["m"], **pool} for name, pool in pools.items()}
    return changed(MINIMAL, ("engines", engines), ("pools", stated))


def test_two_pools_serve_one_model_each_for_its_length_class(folder: Path) -> None:
    pools = load(folder, of_lengths(s={"length_class": "short"}, v={"length_class": "long"})).pools
    assert [pool.length_class for pool in pools.values()] == [LengthClass.SHORT, LengthClass.LONG]


@pytest.mark.parametrize(
    ("pools", "message"),
    [
        ({"s": {"length_class": "short"}}, "pools.s.length_class: is short, and the model m has no pool for long prompts. Add a pool with `length_class: long` that serves it, or remove this line."),
        ({"v": {"length_class": "long"}}, "pools.v.length_class: is long, and the model m has no pool for short prompts"),
        ({"s": {"length_class": "short"}, "v": {"length_class": "long", "models": ["m", "n"]}}, "pools.v.length_class: is long, and the model n has no pool for short prompts"),
        ({"s": {"length_class": "short"}, "t": {"length_class": "short"}}, "pools.t.models[0]: is served by the pool s already"),
        ({"s": {"length_class": "short"}, "t": {}}, "pools.t.models[0]: is served by the pool s already"),
        ({"s": {}, "v": {"length_class": "long"}}, "or in two pools, one with `length_class: short` and one with `length_class: long`"),
        ({"s": {"length_class": "short"}, "v": {"length_class": "long"}, "t": {"length_class": "long"}}, "pools.v.models[0]: is served by the pool t already"),
        ({"s": {"length_class": "short"}, "v": {"length_class": "long", "tokenizer": {"kind": "estimate"}}}, "pools.v.tokenizer: is not that of the pool s, which serves m too. State the same tokenizer for both"),
        ({"s": {"length_class": "short", "region": "eu"}, "v": {"length_class": "long"}}, "pools.v.region: is not that of the pool s, which serves m too. State the same region for both"),
        ({"s": {"length_class": "medium"}}, "pools.s.length_class: 'medium' is not one of: short, long"),
    ],
)  # fmt: skip
def test_pools_by_length_that_cannot_serve_every_prompt_alike_are_refused(
    folder: Path, pools: dict[str, Any], message: str
) -> None:
    assert message in str(refusal_of(folder, of_lengths(**pools)))


def test_an_engine_key_with_a_line_break_is_refused_unseen(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENGINE_A_KEY", "upstream-secret\n")
    shown = str(refusal_of(folder, FULL))
    assert "engines[0].api_key_env: names a variable whose value has a space, a line break" in shown
    assert "upstream-secret" not in shown


def places(here: Any, path: str = "") -> Iterator[str]:
    """The path of every mapping of a document."""
    if isinstance(here, dict):
        yield path
        for key, value in here.items():
            yield from places(value, f"{path}.{key}" if path else key)
    elif isinstance(here, list):
        for index, value in enumerate(here):
            yield from places(value, f"{path}.{index}")


@pytest.mark.parametrize("place", [path for path in places(yaml.safe_load(FULL)) if path != "pools"])
def test_an_unknown_key_is_refused_in_every_section(folder: Path, place: str) -> None:
    refusal = refusal_of(folder, changed(FULL, (f"{place}.unheard_of" if place else "unheard_of", 1)))
    assert refusal.key_path == f"{place}.unheard_of".lstrip(".").replace(".0.", "[0].")
    assert refusal.problem == "is not a known key"


def test_every_operators_field_that_can_be_counted_may_be_let_through(folder: Path) -> None:
    names = set(OPERATOR_MEMBERS) - {"prompt_embeds"}
    read = load(folder, changed(MINIMAL, ("engine_fields", {"allow": sorted(names)})))
    assert read.engine_fields.allow == names


def test_a_calibration_is_a_word_or_a_file_beside_the_configuration(folder: Path) -> None:
    (folder / "a.yaml").write_text("")
    for said, read in (("probe", "probe"), ("off", "off"), ("a.yaml", folder / "a.yaml")):
        engines = load(folder, changed(MINIMAL, ("engines.0.calibration", said))).engines
        assert engines[0].calibration == read
    assert load(folder, MINIMAL).engines[0].calibration == "probe"


def test_a_calibration_that_is_neither_is_told_with_the_words_and_the_command(folder: Path) -> None:
    with pytest.raises(ConfigError) as raised:
        load(folder, changed(MINIMAL, ("engines.0.calibration", "prob")))
    assert raised.value.key_path == "engines[0].calibration"
    assert "gateway bench calibrate" in raised.value.fix and "probe or off" in raised.value.fix


@pytest.mark.parametrize(
    "url",
    ["https://issuer.example/a/b?policy=c", "http://127.0.0.1:9/jwks", "http://[::1]/jwks", "http://localhost:8/"],
)
def test_an_issuers_address_is_https_or_on_this_machine(folder: Path, url: str) -> None:
    jwt = load(folder, changed(MINIMAL, ("auth", {"jwt": {**JWT, "jwks_url": url}}))).auth.jwt
    assert jwt is not None
    assert (jwt.jwks_url, jwt.jwks_file, jwt.models_claim) == (url, None, None)


def test_an_issuers_file_is_found_beside_the_configuration(folder: Path) -> None:
    changes = {**JWT, "jwks_file": "keys.yaml", "models_claim": "models"}
    del changes["jwks_url"]
    jwt = load(folder, changed(MINIMAL, ("auth", {"jwt": changes}))).auth.jwt
    assert jwt is not None
    assert (jwt.jwks_file, jwt.models_claim) == (folder / "keys.yaml", "models")


@pytest.mark.parametrize("missing", ["opentelemetry.sdk.trace", "opentelemetry.exporter.otlp.proto.http"])
def test_tracing_without_its_extra_is_refused_with_how_to_install_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    assert load(folder, MINIMAL + "tracing: true\n").tracing
    monkeypatch.setitem(sys.modules, missing, None)
    assert not load(folder, MINIMAL).tracing
    with pytest.raises(ConfigError) as refused:
        load(folder, MINIMAL + "tracing: true\n")
    assert (refused.value.key_path, "pip install 'vllm-admission-gateway[tracing]'" in str(refused.value)) == (
        "tracing",
        True,
    )
