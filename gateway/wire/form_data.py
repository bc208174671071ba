"""A multipart form, read strictly: the fields that are judged, and that there is a file.

Owns the one reading of a form that every engine shares: each part has one plain name, no field comes twice, nothing
stands before, between or after the parts. What could be read in two ways is refused. Never decodes a file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from gateway.wire.fields import BadRequest, bad

PARTS_MAX = 64
PART_HEAD_BYTES_MAX = 4096
FIELD_BYTES_MAX = 65536

_CONTENT_TYPE = re.compile(
    r'multipart/form-data(?:\s*;\s*charset="?utf-8"?)?\s*;\s*boundary='
    r'(?:"([A-Za-z0-9()+_,./:=? -]{0,69}[A-Za-z0-9()+_,./:=?-])"|([A-Za-z0-9+_.-]{1,70}))'
    r'(?:\s*;\s*charset="?utf-8"?)?',
    re.IGNORECASE,
)
_DISPOSITION = re.compile(
    rb"""form-data; ?name=(?:"([^"\\\r\n]{1,256})"|([\w.\[\]-]{1,256}))"""
    rb"""(; ?filename=(?:"[^"\\\r\n]*"|[\w.-]+))?"""
    rb"""(?:; ?filename\*=[A-Za-z0-9!#$&+.^_`|~%'-]*)?""",
    re.IGNORECASE,
)
_TRANSFER = b"content-transfer-encoding"
_PART_HEADERS = frozenset({b"content-disposition", b"content-type", b"content-length", _TRANSFER})
_AS_IT_IS = frozenset({b"7bit", b"8bit", b"binary"})  # engines decode none of the others


def read_form(body: bytes, content_type: str, *, file: str) -> Mapping[str, str]:
    """The form's fields, each as text. Raises BadRequest; also where the part `file` is not a file.

    A name that ends with [] may come more than once; its last value is the one that is told.
    """
    found = _CONTENT_TYPE.fullmatch(content_type.strip())
    if found is None:
        message = "The Content-Type has to be multipart/form-data with one plain boundary."
        raise bad("invalid_content_type", message, "content-type")
    fields: dict[str, str] = {}
    names: set[str] = set()
    has_file = False
    for name, is_file, content in _parts(body, b"--" + (found[1] or found[2]).encode()):
        if name in names and not name.endswith("[]"):
            raise bad("duplicate_parameter", f"{name} is there more than once.", name)
        names.add(name)
        if is_file != (name == file):
            raise bad("invalid_type", f"{name} has to be a {'file' if name == file else 'field'}.", name)
        if is_file:
            has_file = True
        else:
            fields[name] = _text(name, content)
    if not has_file:
        raise bad("missing_required_parameter", f"{file} is required.", file)
    return fields


def with_field(body: bytes, name: str, value: str) -> bytes:
    """The form, which was read before, with one more field at its end; all else as it came, byte for byte."""
    delimiter = body[: body.index(b"\r\n")]
    end = body.rindex(delimiter + b"--")
    field = b'%s\r\nContent-Disposition: form-data; name="%s"\r\n\r\n%s\r\n' % (
        delimiter,
        name.encode(),
        value.encode(),
    )
    return body[:end] + field + body[end:]


def _parts(body: bytes, delimiter: bytes) -> Iterator[tuple[str, bool, memoryview]]:
    """Each part's name, whether it is a file, and its content."""
    view, separator = memoryview(body), b"\r\n" + delimiter
    if not body.startswith(delimiter):
        raise _malformed("does not begin with its boundary")
    at = len(delimiter)
    for _ in range(PARTS_MAX):
        if body[at : at + 2] == b"--":
            if body[at + 2 :] not in (b"", b"\r\n"):
                raise _malformed("goes on after its end")
            return
        head_end = body.find(b"\r\n\r\n", at, at + PART_HEAD_BYTES_MAX)
        if body[at : at + 2] != b"\r\n" or head_end < 0:
            raise _malformed("has a part without a head")
        content_at = head_end + 4
        end = body.find(separator, content_at)
        if end < 0 or body.startswith(delimiter, content_at):
            # A boundary right after the head ends the part for some readers, and is its content for others.
            raise _malformed("has a part without an end")
        name, is_file = _head(body[at + 2 : head_end])
        yield name, is_file, view[content_at:end]
        at = end + len(separator)
    raise _malformed(f"has more than {PARTS_MAX} parts")


def _head(head: bytes) -> tuple[str, bool]:
    """The name of a part, and whether it is a file."""
    dispositions = []
    for line in head.split(b"\r\n"):
        name, colon, value = line.partition(b":")
        if not colon or name.lower() not in _PART_HEADERS:
            raise _malformed("has a part with an unknown header")
        if name.lower() == b"content-disposition":
            dispositions.append(value.strip(b" "))
        elif name.lower() == _TRANSFER and value.strip(b" ").lower() not in _AS_IT_IS:
            raise _malformed("has a part in an encoding of its own")
    found = _DISPOSITION.fullmatch(dispositions[0]) if len(dispositions) == 1 else None
    if found is None:
        raise _malformed("has a part without one plain name")
    try:
        return (found[1] or found[2]).decode(), found[3] is not None
    except UnicodeDecodeError:
        raise _malformed("has a name that is not UTF-8") from None


def _text(name: str, content: memoryview) -> str:
    if len(content) > FIELD_BYTES_MAX:
        message = f"{name} is over {FIELD_BYTES_MAX} bytes."
        raise bad("string_above_max_length", message, name, limit=FIELD_BYTES_MAX, observed=len(content))
    try:
        return bytes(content).decode()
    except UnicodeDecodeError:
        raise bad("invalid_utf8", f"{name} is not UTF-8.", name) from None


def _malformed(what: str) -> BadRequest:
    """`what` completes the sentence "The form …"."""
    return bad("invalid_form", f"The form {what}.", "body")
