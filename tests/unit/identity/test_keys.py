import hashlib
from pathlib import Path

import pytest
import yaml

from gateway.identity.keys import KeyEntry, load_keys, new_key
from gateway.strict_yaml import ConfigError

CLASSES = {"interactive", "batch"}
HASH = hashlib.sha256(b"gw-made-up").hexdigest()
ENTRY = {"id": "k1", "sha256": HASH, "service_class": "interactive", "tenant": "acme"}


def load(folder: Path, *entries: dict[str, object]) -> tuple[KeyEntry, ...]:
    file = folder / "keys.yaml"
    file.write_text(yaml.safe_dump({"keys": list(entries)}))
    return load_keys(file, CLASSES)


def test_an_entry_is_read_with_and_without_its_optional_members(tmp_path: Path) -> None:
    full = {**ENTRY, "id": "k2", "sha256": "0" * 64, "models": ["m", "n"], "not_after": "2030-01-31T00:00:00Z"}
    first, second = load(tmp_path, ENTRY, full)
    assert (first.id, first.service_class, first.tenant) == ("k1", "interactive", "acme")
    assert (first.models, first.not_after_epoch_s) == (None, None)
    assert second.models == frozenset({"m", "n"})
    assert second.not_after_epoch_s == 1_896_048_000


def test_a_moment_in_another_time_zone_is_the_same_moment(tmp_path: Path) -> None:
    (entry,) = load(tmp_path, {**ENTRY, "not_after": "2030-01-31T02:00:00+02:00"})
    assert entry.not_after_epoch_s == 1_896_048_000


def test_a_file_without_keys_lets_nobody_in_and_is_no_error(tmp_path: Path) -> None:
    assert load(tmp_path) == ()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"service_class": "gold"}, "keys[0].service_class: is gold, which the policy does not have. Use one of batch, interactive"),
        ({"sha256": HASH.upper()}, "keys[0].sha256: is not a SHA-256. Give 64 lower-case hexadecimal digits"),
        ({"sha256": HASH[:-1]}, "keys[0].sha256: is not a SHA-256."),
        ({"sha256": "gw-" + "s3cret" * 8}, "keys[0].sha256: holds a key, not its hash."),
        ({"key": "gw-s3cret"}, "keys[0].key: is not a known key."),
        ({"id": "Schlüssel"}, "keys[0].id: is not a valid name."),
        ({"tenant": "株式会社"}, "keys[0].tenant: is not a valid name."),
        ({"tenant": "a\r\nx-evil: 1"}, "keys[0].tenant: is not a valid name."),
        ({"models": []}, "keys[0].models: is empty."),
        ({"not_after": "soon"}, "keys[0].not_after: is not a time. Write it like 2030-01-31T00:00:00Z."),
        ({"not_after": "2030-01-31"}, "keys[0].not_after: has no time zone."),
        ({"not_after": "2030-01-31T00:00:00"}, "keys[0].not_after: has no time zone."),
        ({"not_after": 1896048000}, "keys[0].not_after: should be text, not 1896048000."),
        ({"tenant": None}, "keys[0].tenant: has no value."),
    ],
)  # fmt: skip
def test_a_faulty_entry_is_named_and_nothing_of_a_key_is_shown(
    tmp_path: Path, change: dict[str, object], message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, {**ENTRY, **change})
    shown = str(caught.value)
    assert shown.startswith(f"{tmp_path / 'keys.yaml'}: ")
    assert message in shown
    assert "s3cret" not in shown


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (yaml.safe_dump([ENTRY]), "is a list"),
        (yaml.safe_dump(ENTRY), "is an entry"),
        (yaml.safe_dump({"key": "gw-s3cret", "entry": ENTRY}), "is an entry"),
    ],
)
def test_entries_without_the_key_above_them_are_recognised(tmp_path: Path, text: str, problem: str) -> None:
    file = tmp_path / "keys.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_keys(file, CLASSES)
    assert caught.value.lines() == [f"{file}: {problem}. Start it with `keys:` and list the entries under it."]


@pytest.mark.parametrize("twice", ["id", "sha256"])
def test_an_id_and_a_hash_appear_once(tmp_path: Path, twice: str) -> None:
    other = {**ENTRY, "id": "k2", "sha256": "0" * 64, twice: ENTRY[twice]}
    with pytest.raises(ConfigError, match=rf"keys\[1\]\.{twice}: is the same as keys\[0\]\.{twice}"):
        load(tmp_path, ENTRY, other)


def test_a_missing_keys_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"keys\.yaml: does not exist"):
        load_keys(tmp_path / "keys.yaml", CLASSES)


def test_a_new_key_has_the_documented_form_and_its_entry_the_hash_of_all_of_it() -> None:
    key, entry = new_key("batch", "acme")
    assert key.startswith("gw-")
    assert len(key) >= 3 + 32
    assert set(key) <= set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_")
    assert entry.sha256 == hashlib.sha256(key.encode()).hexdigest()
    assert (entry.service_class, entry.tenant) == ("batch", "acme")


def test_no_two_new_keys_are_alike() -> None:
    made = [new_key("batch", "acme") for _ in range(50)]
    assert len({key for key, _ in made}) == 50
    assert len({entry.id for _, entry in made}) == 50
