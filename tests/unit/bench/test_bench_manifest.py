"""A manifest has no hole, is never changed, and says of anything that differs what it is."""

from __future__ import annotations

import hashlib
import stat
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from bench.errors import UsageError
from bench.manifest import differences, drafting, gateway_files, heard, sealed
from bench.manifest.draft import ARGUMENTS, Draft
from bench.manifest.drafting import Seen
from bench.manifest.gateway_files import Configured
from bench.manifest.heard import HeardEngine, HeardGateway
from bench.manifest.schema import Argument, Manifest
from bench.manifest.sealed import ChangedError

COMMIT = "0123456789abcdef0123456789abcdef01234567"
SETTINGS: Mapping[str, Any] = {
    "engines": [{"name": "a", "url": "http://127.0.0.1:1/", "pool": "chat"}],
    "pools": {"chat": {"models": ["m"]}},
}
CANARY: Mapping[str, Any] = {
    "engines": [
        {"name": "a", "url": "http://127.0.0.1:1", "pool": "chat", "weight": 9},
        {"name": "b", "url": "http://127.0.0.1:2", "pool": "chat"},
    ],
    "pools": {"chat": {"models": ["m"]}},
}
STATED: Mapping[str, Any] = {
    "version": 1,
    "gateway_config": "gateway.yaml",
    "name": "chat",
    "owner": "on call",
    "deployment_revision": "chart 1",
    "image_digest": "sha256:" + "1" * 64,
    "model_revision": COMMIT,
    "tokenizer_revision": COMMIT,
    "speculation": "none",
    "args": {name: 1 for name in ARGUMENTS if name != "max_model_len"},
    "health_probe": {"path": "/health", "within_s": 5},
    "capacity": {"requests_per_s": 2.5, "evidence": "run 1"},
    "drain_deadline_s": 30,
    "abort": {"error_share_max": 0.01},
}


def told(**args: Any) -> dict[str, Argument]:
    return {name: Argument.model_validate({"value": value, "from": "metrics"}) for name, value in args.items()}


def an_engine(**changes: Any) -> HeardEngine:
    usual = {"version": "0.32.0", "models": ("m",), "args": told(enable_prefix_caching=False, max_model_len=4096)}
    return HeardEngine(**{"problem": None, **usual, **changes})


def a_gateway(weights: Mapping[str, float], **changes: Any) -> HeardGateway:
    engines = {name: {"up": True, "state": "up", "weight": weight} for name, weight in weights.items()}
    usual = {"version": "1.0", "policy": {"name": "short-first", "sha256": "a" * 64}, "engines": engines}
    return HeardGateway(**{"problem": None, **usual, **changes})


def seen(settings: Mapping[str, Any] = SETTINGS, text: str | None = None, **engines: HeardEngine) -> Seen:
    text = yaml.safe_dump(dict(settings)) if text is None else text
    configured = Configured(Path("/etc/gateway.yaml"), text, settings, None)
    return Seen(configured, "http://127.0.0.1:9090", a_gateway(configured.weights("chat")), engines, None)


def fields(saw: Seen, baseline: Manifest | None = None, **stated: Any) -> dict[str, Any]:
    """A field that is `...` is left out."""
    said = STATED if baseline is None else {"version": 1, "gateway_config": "gateway.yaml", "name": "next"}
    draft = Draft.model_validate({name: value for name, value in {**said, **stated}.items() if value is not ...})
    return drafting.assembled(draft, saw, "chat", baseline, "2026-01-01T00:00:00Z")


def written(folder: Path, made: Mapping[str, Any]) -> Path:
    return sealed.write(folder, sealed.sealed(made), made["name"])


@pytest.fixture
def baseline(tmp_path: Path) -> Manifest:
    return sealed.load(written(tmp_path, fields(seen(a=an_engine()))))


# ── no holes ──


def test_all_that_is_missing_is_told_at_once_each_with_how_to_find_it() -> None:
    with pytest.raises(UsageError) as hole:
        fields(
            seen(a=HeardEngine("http://127.0.0.1:1/health does not answer")),
            **{name: ... for name in STATED if name not in ("version", "gateway_config")},
        )
    told_of = {line.strip().partition(": ")[0]: line.partition(": ")[2] for line in str(hole.value).splitlines()[1:]}
    assert set(told_of) >= {*STATED} - {"version", "gateway_config", "args"} | {
        "model",
        "engines.a",
        "engines.a.version",
    }
    assert set(told_of) >= {f"engines.a.args.{name}" for name in ARGUMENTS}
    assert all(how for how in told_of.values())


@pytest.mark.parametrize("name", sorted({*STATED} - {"version", "gateway_config", "args"}))
def test_no_field_may_be_left_out(name: str) -> None:
    with pytest.raises(UsageError, match=f"  {name}: "):
        fields(seen(a=an_engine()), **{name: ...})


@pytest.mark.parametrize("name", sorted(ARGUMENTS))
def test_no_argument_that_decides_how_an_engine_runs_may_be_left_out(name: str) -> None:
    args = {each: value for each, value in STATED["args"].items() if each != name}
    with pytest.raises(UsageError, match=rf"engines.a.args.{name}: "):
        fields(seen(a=an_engine(args=told(enable_prefix_caching=False))), args=args)


def test_what_runs_goes_before_what_is_stated_and_a_contradiction_is_no_manifest() -> None:
    made = fields(seen(a=an_engine(model_revision=COMMIT)))
    assert (made["sources"]["model_revision"], made["sources"]["owner"]) == ("models", "stated")
    assert made["engines"]["a"]["args"]["max_model_len"] == {"value": 4096, "from": "metrics"}
    assert made["engines"]["a"]["args"]["dtype"] == {"value": 1, "from": "stated"}
    with pytest.raises(UsageError, match="model_revision: the draft states"):
        fields(seen(a=an_engine(model_revision="f" * 40)))
    with pytest.raises(UsageError, match=r"args.block_size: the draft states 1, and a says 16 \(metrics\)"):
        fields(seen(a=an_engine(args=told(block_size=16, enable_prefix_caching=False, max_model_len=1))))


@pytest.mark.parametrize(("stated", "told_of"), [("none", "SpeculativeConfig"), ("ngram, 3 tokens", None)])
def test_speculation_that_is_stated_against_what_the_engine_says_is_no_manifest(stated: str, told_of: Any) -> None:
    args = told(enable_prefix_caching=False, max_model_len=1, speculative_config=told_of)
    with pytest.raises(UsageError, match=f"speculation: a says {told_of}"):
        fields(seen(a=an_engine(args=args)), speculation=stated)
    other = "none" if told_of is None else "ngram"
    assert fields(seen(a=an_engine(args=args)), speculation=other)["speculation"] == other


def test_a_policy_file_that_is_not_in_force_and_weights_that_were_shifted_are_no_state_to_go_back_to() -> None:
    saw = seen(a=an_engine())
    own = replace(saw.configured, policy_file=Path("/etc/mine.yaml"))
    with pytest.raises(UsageError, match=r"gateway\.policy: /etc/mine\.yaml is not what is in force"):
        fields(replace(saw, configured=own, policy_text="name: mine\n"))
    with pytest.raises(UsageError, match=r"gateway\.weights: they are shifted"):
        fields(replace(saw, gateway=a_gateway({"a": 1.0}, shifted=True)))


def test_a_policy_that_is_in_force_and_not_in_the_file_is_no_state_to_go_back_to() -> None:
    other = a_gateway({"a": 1.0}, policy={"name": "sliced", "sha256": "a" * 64})
    with pytest.raises(UsageError, match=r"gateway\.policy: short-first stands in the file, sliced is in force"):
        fields(replace(seen(a=an_engine()), gateway=other))


def test_the_model_is_the_one_that_is_stated_where_the_engines_serve_it() -> None:
    both = an_engine(models=("base", "adapter"))
    assert fields(seen(a=both), model="adapter")["model"]["name"] == "adapter"
    assert fields(seen(a=both))["model"]["name"] == "base"
    with pytest.raises(UsageError, match="model: the draft states other, and a serves base, adapter"):
        fields(seen(a=both), model="other")


@pytest.mark.parametrize("said", [{"environment": {"HF_TOKEN": "hf-1"}}, {"args": {"api_key": "hf-1"}}])
def test_a_draft_states_no_secret(said: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="no place for a secret"):
        fields(seen(a=an_engine()), **said)


# ── the file ──


def test_a_manifest_is_kept_for_reading_alone_under_a_name_with_its_hash(tmp_path: Path) -> None:
    raw = sealed.sealed(fields(seen(a=an_engine())))
    path = sealed.write(tmp_path / "kept", raw, "chat")
    digest = hashlib.sha256(raw.partition(b"\n")[2]).hexdigest()
    assert path.name == f"chat-{digest[:12]}.yaml"
    assert (stat.S_IMODE(path.stat().st_mode), path.read_bytes()) == (0o444, raw)
    assert sealed.load(path).sha256 == sealed.sha256_in(raw) == digest
    assert sealed.write(tmp_path / "kept", raw, "chat") == path
    path.chmod(0o644)
    path.write_bytes(raw + b"#")
    with pytest.raises(UsageError, match="is another file"):
        sealed.write(tmp_path / "kept", raw, "chat")


@settings(max_examples=30)
@given(data=st.data())
def test_any_byte_that_is_changed_added_or_taken_away_is_noticed(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    raw = sealed.sealed(fields(seen(a=an_engine())))
    at = data.draw(st.integers(0, len(raw) - 1))
    kept = data.draw(st.sampled_from([b"", raw[at : at + 1]]))
    new = data.draw(st.binary(max_size=2).filter(lambda each: each + kept != raw[at : at + 1]))
    changed = raw[:at] + new + kept + raw[at + 1 :]
    path = tmp_path_factory.mktemp("changed") / "m.yaml"
    path.write_bytes(changed)
    if changed == raw:  # a byte was put beside its like
        return
    with pytest.raises(ChangedError):
        sealed.load(path)


@settings(max_examples=30)
@given(text=st.text(min_size=1, max_size=40))
@example(text="a\n\x85b\u2028")
def test_gateway_yaml_comes_back_as_it_was_whatever_stands_in_it(
    text: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    made = fields(seen(text=text, a=an_engine()))
    manifest = sealed.load(written(tmp_path_factory.mktemp("text"), made))
    assert gateway_files.of_manifest(manifest.gateway, Path("g")) == {Path("g"): text.encode()}


def test_a_field_that_is_unknown_or_no_value_is_no_manifest(tmp_path: Path) -> None:
    made = fields(seen(a=an_engine()))
    with pytest.raises(UsageError, match="strange: unknown key"):
        sealed.sealed({**made, "strange": 1})
    with pytest.raises(UsageError, match="owner"):
        sealed.sealed({**made, "owner": None})
    with pytest.raises(UsageError, match="config is not what its sha256 says"):
        sealed.sealed({**made, "gateway": {**made["gateway"], "config": "other"}})
    with pytest.raises(UsageError, match="has the weight 0"):
        sealed.sealed({**made, "routing": {**made["routing"], "weights": {"a": 0}}})
    (tmp_path / "no.yaml").write_text("version: 1\n")
    with pytest.raises(ChangedError, match="no manifest"):
        sealed.load(tmp_path / "no.yaml")


# ── a candidate ──


def test_a_candidate_is_a_change_to_its_baseline_and_differs_in_just_that(tmp_path: Path, baseline: Manifest) -> None:
    saw = seen(CANARY, b=an_engine())
    assert drafting.target_of(
        Draft.model_validate({"version": 1, "gateway_config": "g"}), saw.configured, "chat", baseline
    ) == ["b"]
    baseline = baseline.model_copy(update={"environment": {"X": "1"}})
    made = fields(saw, baseline, deployment_revision="chart 2", args={"max_num_seqs": 2})
    assert made["environment"] == {"X": "1"} and fields(saw, baseline, environment={})["environment"] == {}
    assert (made["sources"]["owner"], made["sources"]["deployment_revision"]) == ("baseline", "stated")
    candidate = sealed.load(written(tmp_path, made))
    assert candidate.baseline_sha256 == baseline.sha256
    changed = {each.field: (each.stated, each.found) for each in differences.between(baseline, candidate)}
    assert changed.pop("engine.args.max_num_seqs") == (1, 2)
    assert changed.pop("deployment_revision") == ("chart 1", "chart 2")
    assert changed.pop("routing.weights.a") == (1.0, 9.0)
    assert changed.pop("routing.weights.b") == (differences.ABSENT, 1.0)
    assert set(changed) == {"routing.target", "engine.url", "gateway.config", "gateway.config_sha256"}
    assert differences.between(baseline, baseline) == []


def test_what_goes_back_beside_what_a_manifest_is_about_is_told_key_by_key() -> None:
    """A rollback puts the whole file back: also what others changed in it since."""
    a, b = {"name": "a", "url": "http://a"}, {"name": "b", "url": "http://b", "weight": 0}
    then = {"engines": [a, b], "limits": {"body_bytes_max": 1}}
    now = {"engines": [{**b, "weight": 1}, a], "limits": {"body_bytes_max": 2, "keepalive_s": 5}}
    found = {each.field: (each.found, each.stated) for each in differences.of_settings(now, then)}
    assert found == {
        "engines.b.weight": (1, 0),
        "limits.body_bytes_max": (2, 1),
        "limits.keepalive_s": (5, differences.ABSENT),
    }
    assert differences.of_settings(then, {**then, "engines": [b, a]}) == []


def test_a_candidate_has_no_image_of_another_version_and_no_revision_of_another_model(baseline: Manifest) -> None:
    with pytest.raises(UsageError, match=r"image_digest: the baseline's is of 0\.32\.0, and not of 0\.33\.0: `docker"):
        fields(seen(CANARY, b=an_engine(version="0.33.0")), baseline)
    with pytest.raises(UsageError) as hole:
        fields(seen(CANARY, b=an_engine(models=("n",))), baseline)
    assert [f"  {name}: the baseline's is of m, and not of n" in str(hole.value)
            for name in ("model_revision", "tokenizer_revision", "image_digest")] == [True, True, False]  # fmt: skip


def test_an_argument_that_the_candidates_log_leaves_out_is_not_the_baselines_of_another_log(tmp_path: Path) -> None:
    from_log = {"max_num_seqs": Argument.model_validate({"value": 64, "from": "log"})}
    others = {name: value for name, value in STATED["args"].items() if name != "max_num_seqs"}
    base = sealed.load(written(tmp_path, fields(seen(a=an_engine(args=an_engine().args | from_log)), args=others)))
    made = fields(seen(CANARY, b=an_engine()), base)
    assert made["engines"]["b"]["args"]["max_num_seqs"] == {"value": 64, "from": "baseline"}
    with pytest.raises(UsageError, match=r"engines\.b\.args\.max_num_seqs: "):
        fields(seen(CANARY, b=an_engine(log_was_read=True)), base)


# ── what runs ──


def test_what_a_manifest_was_made_of_does_not_differ_from_it(baseline: Manifest) -> None:
    sha256 = baseline.gateway.config_sha256
    assert differences.live(baseline, {"a": an_engine()}, a_gateway({"a": 1.0}), sha256) == []
    untold = differences.untold(baseline, {"a": an_engine()})
    assert set(untold) == {f"engines.a.args.{name}" for name in ARGUMENTS if name != "max_model_len"}


def test_what_an_engines_log_had_and_has_no_more_is_a_new_default_and_differs(tmp_path: Path) -> None:
    from_log = {"max_num_seqs": Argument.model_validate({"value": 64, "from": "log"})}
    others = {name: value for name, value in STATED["args"].items() if name != "max_num_seqs"}
    made = fields(seen(a=an_engine(args=an_engine().args | from_log)), args=others)
    manifest = sealed.load(written(tmp_path, made))
    name = "engines.a.args.max_num_seqs"
    for was_read in (False, True):
        engines = {"a": an_engine(log_was_read=was_read)}
        found = [each.field for each in differences.live(manifest, engines, a_gateway({"a": 1.0}), None)]
        assert found == ([name] if was_read else [])
        assert (name in differences.untold(manifest, engines)) is not was_read


@pytest.mark.parametrize(
    ("field", "engine", "gateway"),
    [
        ("engines.a.health", {"problem": "http://127.0.0.1:1/health answers 503"}, {}),
        ("engines.a.version", {"version": "0.33.0"}, {}),
        ("engines.a.model", {"models": ("other",)}, {}),
        ("engines.a.model.revision", {"model_revision": "f" * 40}, {}),
        ("engines.a.args.max_model_len", {"args": told(max_model_len=8192)}, {}),
        ("engines.a.args.enforce_eager", {"args": told(enforce_eager=True)}, {}),
        ("engines.a.args.enable_lora", {"args": told(enable_lora=True)}, {}),
        ("gateway", {}, {"engines": None, "problem": "no pool"}),
        ("gateway.version", {}, {"version": "2.0"}),
        ("gateway.policy", {}, {"policy": {"name": "x", "sha256": "b" * 64}}),
        ("gateway.weights", {}, {"shifted": True}),
        ("gateway.weights.a", {}, {"engines": {"a": {"up": True, "weight": 0.0}}}),
        ("gateway.weights.a", {}, {"engines": {}}),
        ("gateway.engines.a", {}, {"engines": {"a": {"up": False, "state": "down", "weight": 1.0}}}),
    ],
)
def test_whatever_runs_otherwise_is_named(
    baseline: Manifest, field: str, engine: dict[str, Any], gateway: dict[str, Any]
) -> None:
    found = differences.live(baseline, {"a": an_engine(**engine)}, a_gateway({"a": 1.0}, **gateway), None)
    assert [each.field for each in found] == [field]


def test_another_gateway_yaml_is_named(baseline: Manifest) -> None:
    [found] = differences.live(baseline, {"a": an_engine()}, a_gateway({"a": 1.0}), "0" * 64)
    assert found.field == "gateway.config_sha256"


LOG = """(APIServer pid=1) INFO 01-01 00:00:00 [api_utils.py:286] non-default args: {'port': 8334, 'api_key': ['***'], 'hf_token': 'hf_x', %s'max_num_batched_tokens': 2048}
(EngineCore pid=2) INFO 01-01 00:00:01 [core.py:133] Initializing a V1 LLM engine (v0.32.0) with config: model='/m', speculative_config=None, dtype=torch.float32, max_seq_len=16384, tensor_parallel_size=1, quantization=None, enforce_eager=True, kv_cache_dtype=auto, seed=0
"""


@pytest.mark.parametrize("more", ["", "'compilation_config': CompilationConfig(level=3, x={'a': 1}), "])
def test_an_engines_log_tells_its_arguments_and_no_secret(more: str) -> None:
    said = {name: each.value for name, each in heard.of_log(LOG % "'max_num_seqs': 4, " + LOG % more).items()}
    assert (said["max_num_batched_tokens"], said["dtype"], said["quantization"]) == (2048, "torch.float32", None)
    assert (said["max_model_len"], said["enforce_eager"], said["speculative_config"]) == (16384, True, None)
    assert (said["scheduling_policy"], said["long_prefill_token_threshold"]) == ("fcfs", 0)
    assert not {"api_key", "hf_token"} & said.keys() and "max_num_seqs" not in said, "the last start alone counts"
    assert heard.of_log("nothing") == {}


def test_an_engines_pages_tell_their_arguments() -> None:
    page = 'vllm:cache_config_info{block_size="16",cache_dtype="auto",enable_prefix_caching="True",engine="0"} 1.0\n'
    said = {name: each.value for name, each in heard.of_metrics(page).items()}
    assert said == {"block_size": 16, "enable_prefix_caching": True, "kv_cache_dtype": "auto"}
    info = {"vllm_config": {"scheduler_config": {"max_num_seqs": 8, "policy": "priority", "other": 1}}}
    said = {name: each.value for name, each in heard.of_server_info(info).items()}
    assert said == {"max_num_seqs": 8, "scheduling_policy": "priority"}
    assert heard.of_metrics("{") == heard.of_server_info({"vllm_config": None}) == {}
