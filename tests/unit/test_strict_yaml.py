from pathlib import Path
from typing import Annotated, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field

from gateway.strict_yaml import ConfigError, Fault, LocalPath, Name, Strict, is_name, means_a_file, parse, problem, read


class Square(Strict):
    kind: Literal["square"]
    side: int


class Circle(Strict):
    kind: Literal["circle"]
    radius: float


class Item(Strict):
    name: Name
    number: Annotated[int, Field(ge=0, le=10)] = 3
    label: str | None = None


class Shelf(Strict):
    items: tuple[Item, ...] = ()
    by_name: dict[Name, Item] = Field(default_factory=dict)
    plain: dict[str, Item] = Field(default_factory=dict)
    shape: Annotated[Square | Circle, Field(discriminator="kind")] | None = None
    is_open: bool = False
    path: LocalPath | None = None
    share: Annotated[float, Field(gt=0, lt=1)] = 0.5
    colours: Annotated[tuple[str, ...], Field(min_length=1, max_length=2)] = ("red",)
    size: Literal["small", "large"] = "small"
    version: Literal[1] = 1
    title: Annotated[str, Field(min_length=1)] = "shelf"


def read_text(text: str | bytes) -> Shelf:
    raw = text if isinstance(text, bytes) else text.encode()
    return parse(raw, file="shelf.yaml", model=Shelf)


def refusal_of(text: str | bytes) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        read_text(text)
    return caught.value


def test_a_correct_file_becomes_the_model() -> None:
    shelf = read_text("items: [{name: a, number: 0}]\nshape: {kind: circle, radius: 2}\nis_open: true\n")
    assert shelf.items == (Item(name="a", number=0),)
    assert shelf.shape == Circle(kind="circle", radius=2)
    assert shelf.is_open is True


def test_an_explicit_zero_is_honoured() -> None:
    assert read_text("items: [{name: a, number: 0}]").items[0].number == 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("itmes: []", "itmes: is not a known key. Write `items` if that is meant."),
        ("items: [{name: a, qqq: 1}]", "items[0].qqq: is not a known key. Known keys here: name, number, label."),
        ("items: [{number: 1}]", "items[0].name: is missing. Add it."),
        ("items: [{name: a}, {name: b, number: '5'}]", "items[1].number: should be a whole number, not text."),
        ("items: [{name: a, number: 5.5}]", "items[0].number: should be a whole number, not 5.5."),
        ("items: [{name: a, number: true}]", "items[0].number: should be a whole number, not true."),
        ("items: [{name: a, number: }]", "items[0].number: has no value. Give it a whole number, or remove the key."),
        ("items: [{name: a, number: -1}]", "items[0].number: must be at least 0, not -1. Give 0 or more."),
        ("items: [{name: a, number: 11}]", "items[0].number: must be at most 10, not 11. Give 10 or less."),
        ("items: [{name: a, label: 7}]", "items[0].label: should be text, not 7. Put it in quotes."),
        ("items: {name: a}", "items: should be a list, not a mapping. Write it as [item, …]."),
        ("items: [a]", "items[0]: should be a mapping of keys to values, not text."),
        ("items: [{name: 'ä'}]", "items[0].name: is not a valid name. Use 1 to 64 of the characters"),
        ("items: [{name: none}]", "items[0].name: is not a valid name."),
        ("by_name: {'a b': {name: a}}", 'by_name["a b"]: is not a valid name.'),
        ("by_name: []", "by_name: should be a mapping of keys to values, not a list."),
        ("share: 0", "share: must be above 0, not 0."),
        ("share: 1", "share: must be below 1, not 1."),
        ("share: much", "share: should be a number, not text. Write it plainly,"),
        ("is_open: 1", "is_open: should be true or false, not 1."),
        ("is_open: yes", "is_open: should be true or false, not text."),
        ("colours: []", "colours: is empty. Add an entry."),
        ("title: ''", "title: is empty. Write some text."),
        ("colours: [a, b, c]", "colours: has more than 2 entries. Remove some."),
        ("size: tiny", "size: 'tiny' is not one of: small, large. Write one of these."),
        ("size: smal", "size: 'smal' is not one of: small, large. Write `small` if that is meant."),
        ("size: two words", "size: is not one of: small, large. Write one of these."),
        ("size: 3", "size: 3 is not one of: small, large. Write one of these."),
        ("size:", "size: has no value. Write one of: small, large."),
        ("version: 2", "version: 2 is not 1. Write 1."),
        ("path: 7", "path: should be text, not 7. Put it in quotes."),
        ("shape: {side: 1}", "shape.kind: is missing. State which kind is meant."),
        ("shape: {kind: blob}", "shape.kind: 'blob' is not one of: square, circle. Write one of these."),
        (
            "shape: {kind: squire}",
            "shape.kind: 'squire' is not one of: square, circle. Write `square` if that is meant.",
        ),
        ("shape: {kind: square}", "shape.side: is missing. Add it."),
        ("shape: {kind: square, side: x}", "shape.side: should be a whole number, not text."),
        ("shape: {kind: square, radius: 1}", "shape.radius: is not a known key. Known keys here: kind, side."),
        ("shape: 5", "shape: should be a mapping of keys to values, not 5."),
        ("shape: {kind: square, sied: 1}", "shape.sied: is not a known key. Write `side` if that is meant."),
        ("plain: {x: {name: a, nr: 1}}", "plain.x.nr: is not a known key. Known keys here:"),
        ("by_name: {x: {name: a, nr: 1}}", "by_name.x.nr: is not a known key. Known keys here:"),
        ("[1]", "shelf.yaml: should be a mapping of keys to values, not a list."),
    ],
)
def test_a_fault_is_named_by_file_key_path_and_fix(text: str, message: str) -> None:
    shown = str(refusal_of(text))
    assert shown.startswith("shelf.yaml: ")
    assert message in shown
    assert "\n" not in shown


@pytest.mark.parametrize(
    ("text", "key_path", "problem_part"),
    [
        ("size: small\nsize: large", "size", "appears a second time, on line 2"),
        ("items: [{name: a, name: b}]", "items[0].name", "appears a second time, on line 1"),
        ("size: *nowhere", "size", "refers to *nowhere"),
        ("items: &a [*a]", "items[0]", "refers to *a, which is not complete above"),
        ("<<: {size: small}", "", "merge key"),
        ("? [a]\n: 1", "", "not text"),
        ("1: 2", "", "has a key on line 1 that is not text"),
        ("size: !!python/object:os.system x", "size", "YAML tag"),
        ("items: !x []", "items", "YAML tag"),
        ("share: 1e999", "share", "too large"),
        ("items: [{name: a, number: 1234567890123456789}]", "items[0].number", "more than 18 digits"),
        ('size: "\\0"', "size", "NUL"),
        ("", "", "is empty"),
        ("# only a comment\n", "", "is empty"),
        ("size: small\n---\nsize: large\n", "", "more than one YAML document"),
        ("size: [", "", "is not valid YAML at line"),
        ("a: b: c", "", "is not valid YAML at line 1, column 5"),
        ("size: \x07", "", "character that YAML does not allow"),
        (b"size: \xff", "", "is not UTF-8 (byte 6)"),
        ("[" * 40, "[0]" * 33, "nested more than 32 levels deep"),
    ],
)
def test_yaml_that_is_not_plain_is_refused_with_its_place(text: str, key_path: str, problem_part: str) -> None:
    refusal = refusal_of(text)
    assert refusal.key_path == key_path
    assert problem_part in refusal.problem


def test_every_fault_has_a_line_and_the_first_one_its_parts() -> None:
    refusal = refusal_of("share: 3\nis_open: 1\nsize: 2")
    assert refusal.lines() == [
        "shelf.yaml: is_open: should be true or false, not 1. Write true or false.",
        "shelf.yaml: share: must be below 1, not 3. Give less than 1.",
        "shelf.yaml: size: 2 is not one of: small, large. Write one of these.",
    ]
    assert str(refusal) == refusal.lines()[0]
    assert refusal.key_path == "is_open"


def test_ten_faults_are_told_and_the_others_counted() -> None:
    lines = refusal_of(f"items: [{', '.join(['{name: a, number: x}'] * 25)}]").lines()
    assert len(lines) == 11
    assert lines[9].startswith("shelf.yaml: items[9].number: ")
    assert lines[10] == "shelf.yaml: 15 more."
    assert len(refusal_of(f"items: [{', '.join(['{name: a, number: x}'] * 10)}]").lines()) == 10


@pytest.mark.parametrize(
    ("text", "key_paths"),
    [
        ("colours: [1]", ["colours[0]"]),
        ("shape: {kind: square, sied: 1}", ["shape.sied"]),
        ("items: [{nmae: a}]", ["items[0].nmae"]),
        ("items: [{qqq: 1}]", ["items[0].qqq", "items[0].name"]),
        ("items: [{nmae: a}, {number: 1}]", ["items[0].nmae", "items[1].name"]),
    ],
)
def test_a_fault_that_another_one_explains_is_not_told(text: str, key_paths: list[str]) -> None:
    refusal = refusal_of(text)
    assert [refusal.key_path, *(other.key_path for other in refusal.others)] == key_paths


def test_an_example_is_given_of_a_missing_key_whose_field_has_one() -> None:
    class Door(Strict):
        auth: Annotated[dict[str, str], Field(examples=[{"keys_file": "keys.yaml"}])]

    with pytest.raises(ConfigError) as caught:
        parse(b"{}", file="f.yaml", model=Door)
    assert str(caught.value) == "f.yaml: auth: is missing. Add it, as in `auth: {keys_file: keys.yaml}`."


def test_a_document_that_was_meant_otherwise_has_that_one_fault() -> None:
    def misreading(document: object) -> Fault | None:
        return Fault("", "is an item", "Put it under `items`") if document == {"name": "a", "number": 1} else None

    with pytest.raises(ConfigError) as caught:
        parse(b"{name: a, number: 1}", file="f.yaml", model=Shelf, misreading=misreading)
    assert caught.value.lines() == ["f.yaml: is an item. Put it under `items`."]
    with pytest.raises(ConfigError, match="is not a known key"):
        parse(b"{name: b}", file="f.yaml", model=Shelf, misreading=misreading)


def test_a_text_value_is_never_echoed() -> None:
    for key in ("share", "is_open", "items", "by_name", "shape", "colours"):
        assert "s3cret" not in str(refusal_of(f"{key}: s3cret"))


@pytest.mark.parametrize("text", ["size: {}", "shape: {{kind: {}}}"])
def test_what_may_be_a_key_is_not_echoed_even_in_place_of_a_known_word(text: str) -> None:
    for secret in ("gw-" + "s3cret" * 7, "s3cret s3cret", "s3cret/+="):
        assert "s3cret" not in str(refusal_of(text.format(secret)))


def test_anchors_may_be_used_and_are_copied() -> None:
    shelf = read_text("items: [&one {name: a, number: 1}, *one]")
    assert shelf.items == (Item(name="a", number=1), Item(name="a", number=1))


def test_an_alias_bomb_is_refused_before_it_grows() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 10)]
    assert "values, aliases expanded" in refusal_of("\n".join(lines)).problem


@pytest.mark.parametrize(
    ("written", "read_as"),
    [("on", "on"), ("12:30", "12:30"), ("0x1f", "0x1f"), ("2030-01-31", "2030-01-31"), ("'7'", "7"), (".inf", ".inf")],
)
def test_what_yaml_1_1_would_reinterpret_stays_text(written: str, read_as: str) -> None:
    assert read_text(f"items: [{{name: a, label: {written}}}]").items[0].label == read_as


@pytest.mark.parametrize(("written", "value"), [("2.5e-1", 0.25), ("1e-1", 0.1), (".5", 0.5)])
def test_decimal_and_exponent_notation_are_numbers(written: str, value: float) -> None:
    assert read_text(f"share: {written}").share == value


def test_a_validators_problem_is_placed_below_its_value() -> None:
    class Checked(Strict):
        inner: dict[str, int]

        def model_post_init(self, _: object) -> None:
            raise problem("is odd", fix="Make it even", at="inner.x")

    with pytest.raises(ConfigError) as caught:
        parse(b"inner: {x: 1}", file="f.yaml", model=Checked)
    assert str(caught.value) == "f.yaml: inner.x: is odd. Make it even."


def test_a_path_in_a_file_is_relative_to_the_files_folder(tmp_path: Path) -> None:
    file = tmp_path / "shelf.yaml"
    file.write_text("path: sub/thing")
    assert read(file, Shelf).path == tmp_path / "sub" / "thing"
    file.write_text("path: /absolute")
    assert read(file, Shelf).path == Path("/absolute")


def test_a_missing_file_a_folder_and_an_unreadable_file_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"absent.yaml: does not exist\. Create it, or correct the path\."):
        read(tmp_path / "absent.yaml", Shelf)
    with pytest.raises(ConfigError, match="is a folder"):
        read(tmp_path, Shelf)
    with pytest.raises(ConfigError, match="cannot be read"):
        read(tmp_path / ("x" * 300), Shelf)


def test_a_file_without_permission_is_said_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(ConfigError, match=r"may not be read\. Give this user permission to read it\."):
        read(tmp_path / "shelf.yaml", Shelf)


def test_a_file_over_the_bound_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "big.yaml"
    file.write_bytes(b"#" * (4 * 1024 * 1024 + 1))
    with pytest.raises(ConfigError, match="is larger than 4194304 bytes"):
        read(file, Shelf)


def test_a_byte_order_mark_is_ignored() -> None:
    assert read_text(b"\xef\xbb\xbfsize: large").size == "large"


@pytest.mark.parametrize("name", ["a", "A.b_c-9", "x" * 64])
def test_safe_names_are_names(name: str) -> None:
    assert is_name(name)


@pytest.mark.parametrize("name", ["", "x" * 65, "a b", "a\n", "ä", "中文", "none", "a/b", "a\x00"])
def test_unsafe_names_are_none(name: str) -> None:
    assert not is_name(name)


def test_a_setting_means_a_file_by_its_folder_or_ending() -> None:
    assert [means_a_file(text) for text in ("short-first", "a.yaml", "a.yml", "./a", "/x/y")] == [
        False,
        True,
        True,
        True,
        True,
    ]


@given(st.text(max_size=200) | st.binary(max_size=200))
def test_any_bytes_at_all_end_in_a_model_or_a_config_error(text: str | bytes) -> None:
    try:
        read_text(text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text)
    except ConfigError as error:
        refusal = error
    else:
        return
    assert str(refusal).startswith("shelf.yaml: ")
    assert "\n" not in str(refusal)
