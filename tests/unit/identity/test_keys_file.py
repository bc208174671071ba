import stat
from pathlib import Path

import pytest

from gateway.identity.keys import KeyEntry, load_keys, new_key
from gateway.identity.keys_file import append, as_yaml
from gateway.strict_yaml import ConfigError

CLASSES = {"batch", "interactive"}


def an_entry(tenant: str = "acme") -> KeyEntry:
    return new_key("batch", tenant)[1]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "keys.yaml"


def test_a_missing_file_is_made_for_its_owner_alone(file: Path) -> None:
    entry = an_entry("007")
    append(file, entry)
    assert load_keys(file, CLASSES) == (entry,)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert list(file.parent.iterdir()) == [file]


@pytest.mark.parametrize(
    "layout",
    [
        "keys:\n  - {first}\n  - {second}\n",
        "# who may call\nkeys:\n- {first}\n# the second\n- {second}   # until spring",
        "keys: [{first}, {second}]\n",
        "keys: [\n  {first},\n  {second},\n]   # all of them\n",
        "keys:\n    -   {first}\n    -   {second}\n\n# the end\n",
    ],
)
def test_an_entry_is_added_and_all_else_stays_as_it_was(file: Path, layout: str) -> None:
    first, second, third = an_entry("a"), an_entry("b"), an_entry("c")
    text = layout.format(first=as_yaml(first), second=as_yaml(second))
    file.write_text(text)
    file.chmod(0o640)
    append(file, third)
    assert load_keys(file, CLASSES) == (first, second, third)
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    for comment in (line.partition("#")[2] for line in text.splitlines() if "#" in line):
        assert comment in file.read_text()


def test_entries_with_lists_of_their_own_are_added_to(file: Path) -> None:
    first, second, third = an_entry("a"), an_entry("b"), an_entry("c")
    members = {"id": first.id, "sha256": first.sha256, "service_class": "batch", "tenant": "a"}
    lines = "".join(f"    {name}: {value}\n" for name, value in members.items())
    file.write_text(f"keys:\n  -\n{lines}    models:\n      - m\n")
    append(file, second)
    append(file, third)
    assert [entry.tenant for entry in load_keys(file, CLASSES)] == ["a", "b", "c"]


def test_a_layout_that_no_entry_can_be_added_to_is_named_and_left_alone(file: Path) -> None:
    text = f"keys: [{as_yaml(an_entry())}]   # [so far]"
    file.write_text(text)
    with pytest.raises(ConfigError, match="laid out so that no entry can be added"):
        append(file, an_entry())
    assert file.read_text() == text


@pytest.mark.parametrize("text", ["keys: []\n", "# none yet\nkeys: [ ]   # fill me", "keys: []"])
def test_an_empty_list_takes_its_first_entry(file: Path, text: str) -> None:
    file.write_text(text)
    entry = an_entry()
    append(file, entry)
    assert load_keys(file, CLASSES) == (entry,)


@pytest.mark.parametrize("text", ["keys: [{id: a}]\n", "- {id: a}\n", "keys: [\n", ""])
def test_a_file_that_is_not_right_is_named_and_left_alone(file: Path, text: str) -> None:
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        append(file, an_entry())
    assert caught.value.file == str(file)
    assert file.read_text() == text


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    file = tmp_path / "absent" / "keys.yaml"
    with pytest.raises(ConfigError, match="cannot be written"):
        append(file, an_entry())


def test_a_link_stays_a_link(file: Path, tmp_path: Path) -> None:
    real = tmp_path / "real.yaml"
    file.symlink_to(real)
    for tenant in ("a", "b"):
        append(file, an_entry(tenant))
    assert file.is_symlink()
    assert [entry.tenant for entry in load_keys(real, CLASSES)] == ["a", "b"]
