"""Multipart forms: what is read of them, and that nothing passes which could be read in two ways."""

from __future__ import annotations

import pytest

from gateway.core.plan import RequestBounds
from gateway.testing.forms import BOUNDARY, FORM_TYPE, an_audio_form, field, file, form
from gateway.wire import form_data
from gateway.wire.dialects import TRANSCRIPTIONS
from gateway.wire.fields import BadRequest
from gateway.wire.requests import Call, judge, read

BOUNDS = RequestBounds(sequences_max=4, stop_max=4, list_items_max=8)
EDGE = b"--" + BOUNDARY.encode()
HEAD = b'Content-Disposition: form-data; name="prompt"'


def judged(body: bytes, content_type: str = FORM_TYPE) -> Call:
    return judge(read(TRANSCRIPTIONS, body, content_type), BOUNDS, frozenset())


def refused(body: bytes, content_type: str = FORM_TYPE) -> tuple[str | None, str | None]:
    with pytest.raises(BadRequest) as caught:
        judged(body, content_type)
    return caught.value.refusal.code, caught.value.refusal.param


def test_a_forms_model_stream_and_limit_are_read() -> None:
    body = an_audio_form(field("stream", "True"), field("max_completion_tokens", "30"), field("n", "2"))
    call = judged(body)
    assert (call.model, call.stream, call.sequences, call.output_tokens_stated) == ("tiny", True, 2, 30)
    assert not call.is_divisible
    assert call.rewritten(set_members={}) == body


def test_fields_may_stand_in_any_order_and_lists_may_repeat() -> None:
    repeated = [field("timestamp_granularities[]", value) for value in ("word", "segment")]
    assert judged(form(file(b"x"), *repeated, field("model", "m"))).model == "m"


def test_a_part_is_read_as_other_languages_libraries_write_it() -> None:
    head = b"Content-Disposition: form-data; name="
    model = head + b"model\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Transfer-Encoding: 8bit\r\n\r\ntiny"
    audio = head + b"file; filename=a.wav; filename*=utf-8''a.wav\r\nContent-Transfer-Encoding: Binary\r\n\r\nRIFF"
    repeated = head + b"timestamp_granularities[]\r\n\r\nword"
    body = form(model, audio, repeated, repeated)
    assert judged(body).model == "tiny"
    assert judged(body).rewritten(set_members={}) == body


@pytest.mark.parametrize(
    "content_type",
    [
        f'multipart/form-data; boundary="{BOUNDARY}"',
        f"Multipart/Form-Data;boundary={BOUNDARY}",
        f"multipart/form-data; boundary={BOUNDARY}; charset=utf-8",
        f"multipart/form-data; charset=UTF-8; boundary={BOUNDARY}",
    ],
)
def test_the_boundary_is_read_however_it_is_written(content_type: str) -> None:
    assert judged(an_audio_form(), content_type).model == "tiny"


@pytest.mark.parametrize(
    "content_type",
    [
        "",
        "application/json",
        "multipart/form-data",
        "multipart/form-data; boundary=",
        "multipart/mixed; boundary=x",
        f"multipart/form-data; boundary={BOUNDARY}; boundary=x",
        f"multipart/form-data; boundary={BOUNDARY}; charset=utf-16",
        f"multipart/form-data; charset=utf-16; boundary={BOUNDARY}",
        f"multipart/form-data; boundary={'x' * 71}",
    ],
)
def test_another_content_type_is_no_form(content_type: str) -> None:
    assert refused(an_audio_form(), content_type) == ("invalid_content_type", "content-type")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b"\r\n" + an_audio_form(),
        an_audio_form()[:-4],
        an_audio_form() + b"more",
        an_audio_form(b"no head"),
        an_audio_form(HEAD + b"\r\nContent-Transfer-Encoding: base64\r\n\r\nx"),
        an_audio_form(HEAD + b"\r\n" + HEAD + b"\r\n\r\nx"),
        an_audio_form(HEAD + b'; name="model"\r\n\r\nx'),
        an_audio_form(HEAD + b"\r\n folded: x\r\n\r\nx"),
        an_audio_form(b"Content-Disposition: form-data\r\n\r\nx"),
        an_audio_form(b"Content-Disposition: form-data; name=pro mpt\r\n\r\nx"),
        an_audio_form(b"Content-Disposition: form-data; name=prompt; name=model\r\n\r\nx"),
        an_audio_form(b"Content-Disposition: form-data; name*=utf-8''prompt\r\n\r\nx"),
        an_audio_form(b'Content-Disposition: form-data; name="a\\"b"\r\n\r\nx'),
        an_audio_form(b'Content-Disposition: attachment; name="prompt"\r\n\r\nx'),
        an_audio_form(b'Content-Disposition: form-data; name="\xff"\r\n\r\nx'),
        an_audio_form(b"Content-Type: text/plain\r\n\r\nx"),
        an_audio_form(field("prompt", "x") + b"\r\n" + EDGE + b"X"),
        an_audio_form(HEAD + b"\r\n\r\n" + EDGE + b"\r\n" + field("stream", "true")),
        an_audio_form(HEAD + b"\r\nContent-Type: " + b"x" * form_data.PART_HEAD_BYTES_MAX + b"\r\n\r\nx"),
        an_audio_form(*[field(f"f{number}", "x") for number in range(form_data.PARTS_MAX)]),
    ],
)
def test_what_could_be_read_in_two_ways_is_refused(body: bytes) -> None:
    assert refused(body) == ("invalid_form", "body")


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        (form(file(b"x")), "missing_required_parameter", "model"),
        (form(field("model", ""), file(b"x")), "missing_required_parameter", "model"),
        (form(field("model", "m")), "missing_required_parameter", "file"),
        (form(field("model", "m"), field("file", "x")), "invalid_type", "file"),
        (form(field("model", "m"), file(b"x", name="model2")), "invalid_type", "model2"),
        (an_audio_form(field("model", "other")), "duplicate_parameter", "model"),
        (an_audio_form(field("stream", "yes")), "invalid_type", "stream"),
        (an_audio_form(field("stream", "")), "invalid_type", "stream"),
        (an_audio_form(field("n", "1.0")), "invalid_type", "n"),
        (an_audio_form(field("n", "5")), "too_many_sequences", "n"),
        (an_audio_form(field("max_completion_tokens", "-1")), "invalid_type", "max_completion_tokens"),
        (an_audio_form(field("max_completion_tokens", "0")), "integer_below_min_value", "max_completion_tokens"),
        (an_audio_form(field("priority", "-5")), "unsupported_parameter", "priority"),
        (an_audio_form(field("request_id", "x")), "unsupported_parameter", "request_id"),
        (an_audio_form(field("kv_transfer_params", "{}")), "unsupported_parameter", "kv_transfer_params"),
        (an_audio_form(field("prompt", "x" * 65537)), "string_above_max_length", "prompt"),
        (an_audio_form(HEAD + b"\r\n\r\n\xff"), "invalid_utf8", "prompt"),
    ],
)
def test_a_field_that_cannot_be_served_is_refused_by_its_name(body: bytes, code: str, param: str) -> None:
    assert refused(body) == (code, param)


def test_an_output_limit_that_is_set_is_one_more_field_and_all_else_stays() -> None:
    body = an_audio_form()
    rewritten = judged(body).rewritten(set_members={"max_completion_tokens": 64})
    assert rewritten == body.replace(
        EDGE + b"--", EDGE + b"\r\n" + field("max_completion_tokens", "64") + b"\r\n" + EDGE + b"--"
    )
    assert judged(rewritten).output_tokens_stated == 64


def test_an_empty_field_and_an_empty_file_are_read() -> None:
    assert judged(form(field("model", "m"), field("prompt", ""), file(b""))).model == "m"
