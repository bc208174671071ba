from __future__ import annotations

import json
import sys
from types import FrameType

import pytest

from gateway.wire import json_flaws, large_json, strict_json
from gateway.wire.json_flaws import NESTING_MAX, Malformed
from gateway.wire.strict_json import MEMBERS_MAX, VALUES_MAX, parse, rewrite


def refusal(body: bytes) -> tuple[str, str]:
    with pytest.raises(Malformed) as caught:
        parse(body)
    return caught.value.code, caught.value.param


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        (b"", "invalid_json", "body"),
        (b"{", "invalid_json", "body"),
        (b'{"a":1}x', "invalid_json", "body"),
        (b'{"a":1,}', "invalid_json", "body"),
        (b'{"a":1 "b":2}', "invalid_json", "body"),
        (b'{"a":1,"b":{"c":tru}}', "invalid_json", "body"),
        (b'{"a":01}', "invalid_json", "body"),
        (b'{"a":"\x01"}', "invalid_json", "body"),
        (b'{"model": "tiny", ', "invalid_json", "body"),
        (b"{'a':1}", "invalid_json", "body"),
        (b"[]", "invalid_type", "body"),
        (b"null", "invalid_type", "body"),
        (b'"x"', "invalid_type", "body"),
        (b"\xff", "invalid_encoding", "body"),
        (b'{"a":"\xed\xa0\x80"}', "invalid_encoding", "body"),
        (b"\xef\xbb\xbf{}", "invalid_encoding", "body"),
        ('{"a":1}'.encode("utf-16"), "invalid_encoding", "body"),
        ('{"a":1}'.encode("utf-16-le"), "invalid_json", "body"),
        (b'{"model":"a","model":"b"}', "duplicate_key", "model"),
        (b'{"model":"a","\\u006dodel":"b"}', "duplicate_key", "model"),
        (b'{"messages":[{},{"role":1,"role":2}]}', "duplicate_key", "messages[1].role"),
        (b'{"a":NaN}', "non_finite_number", "a"),
        (b'{"a":-Infinity}', "non_finite_number", "a"),
        (b'{"a":{"b":[0,1e400]}}', "non_finite_number", "a.b[1]"),
        (b'{"top_k":9223372036854775808}', "integer_out_of_range", "top_k"),
        (b'{"seed":-9223372036854775809}', "integer_out_of_range", "seed"),
        (b'{"a":[1,"x",99999999999999999999]}', "integer_out_of_range", "a[2]"),
        (b'{"a":%s}' % (b"9" * 5000), "integer_out_of_range", "a"),
        (b'{"stop":["a","\\ud800"]}', "lone_surrogate", "stop[1]"),
        (b'{"stop":"\\udc00\\ud800"}', "lone_surrogate", "stop"),
        (b'{"a":{"\\ud800":1}}', "lone_surrogate", "a"),
        (b"[" * 2000, "nesting_too_deep", "body"),
        (b'{"a":' * 100_000, "nesting_too_deep", "a"),
        (b'{"a":' + b"[" * 1_000_000, "nesting_too_deep", "a"),
        (b'{"a":NaN,,}', "invalid_json", "body"),
        (b'{"a":9223372036854775808,"b":tru}', "invalid_json", "body"),
    ],
)
def test_what_is_not_one_plain_object_is_refused_by_name(body: bytes, code: str, param: str) -> None:
    assert refusal(body) == (code, param)


@pytest.mark.parametrize(
    "body",
    [
        b'{"a":9223372036854775807,"b":-9223372036854775808}',
        b'{"a":1e308,"b":-0.0,"c":1E-400}',
        b'{"a":"\\ud83d\\ude00","b":"\\\\ud800","c":"\\u0000"}',
        '{"ü":"漢 😀"}'.encode(),
        b' \t\r\n{ "a" : [ 1 , null ] } \n',
        b"{}",
    ],
)
def test_what_is_plain_is_read_as_it_stands(body: bytes) -> None:
    assert parse(body) == json.loads(body)


def test_depth_is_accepted_up_to_its_bound_and_no_further() -> None:
    assert parse(b'{"a":' * NESTING_MAX + b"1" + b"}" * NESTING_MAX)
    code, param = refusal(b'{"a":' * (NESTING_MAX + 1) + b"1" + b"}" * (NESTING_MAX + 1))
    assert (code, param[:6]) == ("nesting_too_deep", "a.a.a.")
    assert refusal(b'{"a":' + b"[" * NESTING_MAX + b"]" * NESTING_MAX + b"}")[0] == "nesting_too_deep"


def test_a_body_of_too_many_values_is_refused_before_it_is_built() -> None:
    body = b'{"a":[' + b"[]," * VALUES_MAX + b"1]}"
    assert refusal(body) == ("body_too_complex", "body")


def test_a_body_of_too_many_members_is_refused_before_it_is_built() -> None:
    members = [b'"%d":0' % number for number in range(MEMBERS_MAX + 1)]
    assert refusal(b"{%s}" % b",".join(members)) == ("body_too_complex", "body")
    assert refusal(b'{"a":[{%s}]}' % b"},{".join(members)) == ("body_too_complex", "body")
    assert len(parse(b"{%s}" % b",".join(members[1:]))) == MEMBERS_MAX


def test_brackets_commas_and_colons_inside_text_are_no_values() -> None:
    text = '[{,:\\"' * (VALUES_MAX // 2)
    body = json.dumps({"a": text}).encode()
    assert parse(body) == {"a": text}


def test_a_name_as_long_as_the_body_is_cut_in_the_refusal() -> None:
    with pytest.raises(Malformed) as caught:
        parse(b'{"%s":NaN}' % (b"k" * 5000))
    assert len(caught.value.param) == 128


def calls_to_name_the_fault(body: bytes) -> int:
    called: list[str] = []

    def note(frame: FrameType, event: str, _argument: object) -> None:
        if event == "call" and frame.f_code.co_filename == json_flaws.__file__:
            called.append(frame.f_code.co_name)

    sys.setprofile(note)
    try:
        with pytest.raises(Malformed):
            parse(body)
    finally:
        sys.setprofile(None)
    return len(called)


def test_only_the_member_at_fault_is_named_however_many_lie_before_it() -> None:
    few, many = (b'{"a":{%s},"b":NaN}' % b",".join(b'"%d":"x"' % number for number in range(n)) for n in (10, 10_000))
    assert refusal(many) == ("non_finite_number", "b")
    assert calls_to_name_the_fault(many) == calls_to_name_the_fault(few)


BODY = b'{ "model" : "m",\n  "n":1 , "\\u0070riority":5,"x":{"priority":1.0e2} }\n'


def names(body: bytes) -> frozenset[str]:
    return frozenset(parse(body))


def test_a_body_that_needs_no_change_is_the_same_object() -> None:
    body = b'{"model":"m"}'
    assert rewrite(body, remove={"priority"}, put={}, present=names(body)) is body


def test_a_new_member_goes_to_the_end_and_all_else_stays() -> None:
    body = b'{"a": 1.0, "b":"\\u0000" } \n'
    assert rewrite(body, remove=(), put={"p": -5}, present=names(body)) == b'{"a": 1.0, "b":"\\u0000","p":-5 } \n'


def test_a_member_that_is_there_changes_in_its_place() -> None:
    changed = rewrite(BODY, remove=(), put={"priority": -7, "n": 2}, present=names(BODY))
    assert changed == b'{ "model" : "m",\n  "n":2 , "\\u0070riority":-7,"x":{"priority":1.0e2} }\n'


def test_a_member_that_may_not_pass_is_cut_out_with_its_comma() -> None:
    removed = rewrite(BODY, remove={"priority"}, put={}, present=names(BODY))
    assert removed == b'{ "model" : "m",\n  "n":1,"x":{"priority":1.0e2} }\n'


@pytest.mark.parametrize(
    ("remove", "expected"),
    [
        ({"a"}, '{"b": "é" , "c":3}'),
        ({"c"}, '{"a":1, "b": "é" }'),
        ({"a", "b"}, '{"c":3}'),
        ({"b", "c"}, '{"a":1 }'),
        ({"a", "b", "c"}, "{}"),
    ],
)
def test_any_set_of_members_can_be_cut_out(remove: set[str], expected: str) -> None:
    body = '{"a":1, "b": "é" , "c":3}'.encode()
    rewritten = rewrite(body, remove=remove, put={}, present=names(body))
    assert json.loads(rewritten) == {k: v for k, v in json.loads(body).items() if k not in remove}
    assert rewritten.decode().replace(" ", "") == expected.replace(" ", "")


def test_a_member_both_removed_and_put_is_put() -> None:
    body = b'{"priority":"9","model":"m"}'
    assert rewrite(body, remove={"priority"}, put={"priority": 1}, present=names(body)) == b'{"priority":1,"model":"m"}'


def test_the_bounds_have_names() -> None:
    assert (strict_json.VALUES_MAX, NESTING_MAX) == (2**21, 64)


def test_a_large_body_is_read_as_a_small_one_is() -> None:
    text = 'A line of "prose", 漢字 and 😀.\n' * 20_000
    value = {"model": "m", "messages": [{"role": "user", "content": text}], "n": 1, "stop": ["x" * 5000, "\\"]}
    for ascii_only in (False, True):
        assert parse(json.dumps(value, ensure_ascii=ascii_only).encode()) == value


@pytest.mark.parametrize(
    ("broken", "code", "param"),
    [
        (b"\\ud83d", "lone_surrogate", "messages[0].content"),
        (b"\\x", "invalid_json", "body"),
        (b"\x01", "invalid_json", "body"),
        (b"\xff", "invalid_encoding", "body"),
        (b'","role":"', "duplicate_key", "messages[0].role"),
        (b'","n":NaN,"m":"', "non_finite_number", "messages[0].n"),
    ],
)
def test_a_large_body_is_refused_by_name(broken: bytes, code: str, param: str) -> None:
    prose = b"prose " * 50_000
    body = b'{"messages":[{"role":"user","content":"%b%b%b"}],"n":1}' % (prose, broken, prose)
    assert refusal(body) == (code, param)


def test_a_large_body_says_which_byte_is_misplaced() -> None:
    with pytest.raises(Malformed, match="byte 300006 cannot be decoded"):
        parse(b'{"a":"%b\xff"}' % (b"x" * 300_000))


def test_a_name_of_a_large_body_has_a_bound() -> None:
    name = b"k" * large_json.NAME_BYTES_MAX
    padding = b"x" * strict_json.QUICK_BYTES_MAX
    assert parse(b'{"a":"%b","%b":1}' % (padding, name[2:])).keys() == {"a", name[2:].decode()}
    assert refusal(b'{"a":"%b","%b":1}' % (padding, name)) == ("body_too_complex", "body")


@pytest.mark.parametrize("body", [b"\x1f\x8b\x08\x00", b"\x28\xb5\x2f\xfd\x04"])
def test_a_compressed_body_that_is_not_called_so_is_told_what_is_missing(body: bytes) -> None:
    with pytest.raises(Malformed) as caught:
        parse(body)
    assert (caught.value.code, "Content-Encoding" in caught.value.message) == ("invalid_encoding", True)
