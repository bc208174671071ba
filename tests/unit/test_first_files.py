"""What `make run` writes on a first start: a configuration that the gateway takes, and a key that it knows."""

from __future__ import annotations

import hashlib
import stat
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from deploy import first_files
from deploy.first_files import FilesError, Upstream
from deploy.welcome import LIMITS
from gateway import settings
from gateway.identity.keys import load_keys
from gateway.strict_yaml import read

OWN = Upstream(
    url="http://127.0.0.1:8000",
    models=("tiny",),
    tokenizer_path=Path("/models/tiny"),
    scheduling="priority",
    limits={"max_num_batched_tokens": 2048, "long_prefill_token_threshold": 640, "max_num_seqs": 128},
    api_key_env=None,
)
GIVEN = Upstream(
    url="http://127.0.0.1:9999",
    models=("org/model:one", "no", "1e3"),
    tokenizer_path=None,
    scheduling=None,
    limits={},
    api_key_env="ENGINE_API_KEY",
)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "gateway.yaml"


@pytest.mark.parametrize("upstream", [OWN, GIVEN], ids=["own engine", "given engine"])
def test_the_configuration_is_one_that_the_gateway_takes(path, upstream, monkeypatch):
    monkeypatch.setenv("ENGINE_API_KEY", "secret")
    assert first_files.write_configuration(path, upstream)
    first_files.write_keys(path.with_name("keys.yaml"))
    taken = read(path, settings.Settings)
    assert (taken.listen.host, taken.listen.port, taken.ops.port) == ("127.0.0.1", 8080, 9090)
    assert taken.engines[0].url == upstream.url
    assert taken.engines[0].api_key_env == upstream.api_key_env
    assert first_files.states_limits(path) is bool(upstream.limits)
    assert taken.pools["default"].models == upstream.models
    assert taken.pools["default"].tokenizer.kind == ("local" if upstream.tokenizer_path else "engine")


def test_a_configuration_that_nobody_changed_follows_the_engine(path):
    first_files.write_configuration(path, OWN)
    assert not first_files.write_configuration(path, OWN)
    assert first_files.write_configuration(path, GIVEN)
    assert GIVEN.url in path.read_text()


def test_a_changed_configuration_is_left_alone(path):
    first_files.write_configuration(path, OWN)
    changed = path.read_text().replace("8080", "8081")
    path.write_text(changed)
    assert not first_files.write_configuration(path, replace(OWN, models=("other",)))
    assert path.read_text() == changed


def test_a_changed_configuration_for_another_engine_is_an_error_and_left_alone(path):
    path.write_text("listen: {port: 1}\n")
    with pytest.raises(FilesError, match=r"does not name http://127\.0\.0\.1:8000"):
        first_files.write_configuration(path, OWN)
    assert path.read_text() == "listen: {port: 1}\n"


def test_keys_are_returned_once_and_kept_as_hashes_that_only_their_owner_reads(tmp_path):
    path = tmp_path / "keys.yaml"
    keys = first_files.write_keys(path)
    assert list(keys) == ["KEY", "KEY_BATCH"]
    entries = load_keys(path, {"interactive", "batch"})
    assert [entry.service_class for entry in entries] == ["interactive", "batch"]
    assert [entry.sha256 for entry in entries] == [hashlib.sha256(key.encode()).hexdigest() for key in keys.values()]
    assert not any(key in path.read_text() for key in keys.values())
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert first_files.write_keys(path) == {}


def test_the_line_of_limits_that_is_shown_can_be_pasted_under_the_engine(path, monkeypatch):
    monkeypatch.setenv("ENGINE_API_KEY", "secret")
    first_files.write_configuration(path, GIVEN)
    assert not first_files.states_limits(path)
    url_line = f'    url: "{GIVEN.url}"\n'
    assert url_line in path.read_text()
    path.write_text(path.read_text().replace(url_line, f"{url_line}    {LIMITS}\n"))
    assert first_files.states_limits(path)
    assert read(path, settings.Settings).engines[0].limits.max_num_seqs == 128
    assert not first_files.write_configuration(path, GIVEN)


def test_addresses_are_read_from_the_configuration(path):
    path.write_text(yaml.safe_dump({"listen": {"host": "0.0.0.0", "port": 81}, "ops": {"port": 91}}))  # noqa: S104
    assert first_files.addresses(path) == first_files.Addresses("http://127.0.0.1:81", "http://127.0.0.1:91")
    path.write_text("{}")
    assert first_files.addresses(path) == first_files.Addresses("http://127.0.0.1:8080", "http://127.0.0.1:9090")
