"""A gateway's files are put back as they were: each as a whole, where it was, and its owner's."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from bench.errors import UsageError
from bench.manifest import gateway_files, rollback
from bench.manifest.ops import Place
from bench.manifest.schema import Gateway

SETTINGS: Mapping[str, Any] = {
    "engines": [{"name": "a", "url": "http://127.0.0.1:1", "pool": "chat"}],
    "pools": {"chat": {"models": ["m"]}},
}


def test_a_policy_file_and_the_ops_port_are_found_in_gateway_yaml(tmp_path: Path) -> None:
    path = tmp_path / "gateway.yaml"
    path.write_text(yaml.safe_dump({**SETTINGS, "policy": "./mine.yaml", "ops": {"host": "::", "port": 9}}))
    configured = gateway_files.read(path)
    assert configured.policy_file == tmp_path / "mine.yaml"
    assert (configured.ops_url(), configured.weights("chat")) == ("http://[::1]:9", {"a": 1.0})
    path.write_text(yaml.safe_dump({**SETTINGS, "ops": {"port": 0}}))
    configured = gateway_files.read(path)
    assert configured.policy_file is configured.ops_url() is None
    for text in ("", "engines: []\npools: {chat: {}}\n", "engines: [{}]\npools: {}\n", "\xff"):
        path.write_bytes(text.encode("latin-1"))
        with pytest.raises(UsageError):
            gateway_files.read(path)


def test_files_are_put_as_a_whole_through_links_with_their_mode_and_put_back(tmp_path: Path) -> None:
    real, link, new = tmp_path / "real.yaml", tmp_path / "link.yaml", tmp_path / "new.yaml"
    real.write_bytes(b"old")
    real.chmod(0o640)
    link.symlink_to(real)
    before = gateway_files.as_found([link, new])
    gateway_files.put({link: b"other", new: b"fresh"})
    assert (real.read_bytes(), link.is_symlink(), stat.S_IMODE(real.stat().st_mode)) == (b"other", True, 0o640)
    gateway_files.put(before)
    assert (real.read_bytes(), new.read_bytes()) == (b"old", b"fresh")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["link.yaml", "new.yaml", "real.yaml"]
    with pytest.raises(UsageError, match="cannot be written"):
        gateway_files.put({tmp_path / "no" / "file": b"x"})


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to somebody else")
def test_a_file_stays_its_owners_whoever_puts_it_back(tmp_path: Path) -> None:
    path = tmp_path / "gateway.yaml"
    path.write_bytes(b"old")
    path.chmod(0o600)
    os.chown(path, 1234, 1235)
    gateway_files.put({path: b"new"})
    now = path.stat()
    assert (path.read_bytes(), now.st_uid, now.st_gid, stat.S_IMODE(now.st_mode)) == (b"new", 1234, 1235, 0o600)


def test_each_copy_of_what_is_replaced_stays_and_is_no_more_open_than_it_was(tmp_path: Path) -> None:
    path = tmp_path / "gateway.yaml"
    path.write_bytes(b"first")
    path.chmod(0o600)
    first = gateway_files.kept_beside(path, "before-now")
    path.write_bytes(b"second")
    second = gateway_files.kept_beside(path, "before-now")
    assert (first.read_bytes(), second.read_bytes()) == (b"first", b"second")
    assert {stat.S_IMODE(each.stat().st_mode) for each in (first, second)} == {0o600}
    with pytest.raises(UsageError, match="cannot be read"):
        gateway_files.as_found([tmp_path])


def test_files_of_which_one_cannot_be_written_are_all_as_before(tmp_path: Path) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_bytes(b"old")
    files = {policy: b"new", tmp_path / "no" / "gateway.yaml": b"new"}
    with pytest.raises(UsageError, match="cannot be written"):
        rollback.put_in_force(files, Place("http://127.0.0.1:1", tmp_path / "no" / "gateway.yaml"), "chat")
    assert policy.read_bytes() == b"old"


def test_a_policy_is_put_where_the_gateway_yaml_that_is_put_back_looks_for_it(tmp_path: Path) -> None:
    config, text = "policy: ./mine.yaml\n", "name: mine\n"
    gateway = Gateway.model_validate(
        {
            "version": "1",
            "ops_url": "http://127.0.0.1:1",
            "file": "/made/gateway.yaml",
            "config": config,
            "config_sha256": hashlib.sha256(config.encode()).hexdigest(),
            "policy": {
                "name": "mine",
                "sha256": hashlib.sha256(text.encode()).hexdigest(),
                "file": "/made/mine.yaml",
                "text": text,
            },
        }
    )
    here = tmp_path / "gateway.yaml"
    assert gateway_files.of_manifest(gateway, here) == {tmp_path / "mine.yaml": text.encode(), here: config.encode()}


def test_an_engines_key_is_in_the_variable_that_gateway_yaml_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY_A", "gw-1")
    monkeypatch.delenv("KEY_B", raising=False)
    engines = [{"name": "a", "api_key_env": "KEY_A"}, {"name": "b", "api_key_env": "KEY_B"}, {"name": "c"}]
    assert gateway_files.keys_of(yaml.safe_dump({"engines": engines})) == {"a": "gw-1"}
