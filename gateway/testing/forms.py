"""Multipart forms as the usual clients write them, for tests."""

from __future__ import annotations

BOUNDARY = "a0b1c2d3e4f5"
FORM_TYPE = f"multipart/form-data; boundary={BOUNDARY}"


def field(name: str, value: str) -> bytes:
    """Return one text part, without the boundary around it."""
    return f'Content-Disposition: form-data; name="{name}"\r\n\r\n{value}'.encode()


def file(content: bytes, *, name: str = "file") -> bytes:
    """Return one file part."""
    head = f'Content-Disposition: form-data; name="{name}"; filename="a.wav"\r\nContent-Type: audio/wav\r\n\r\n'
    return head.encode() + content


def form(*parts: bytes) -> bytes:
    """Return the whole body."""
    delimiter = b"--" + BOUNDARY.encode()
    return b"".join(delimiter + b"\r\n" + part + b"\r\n" for part in parts) + delimiter + b"--\r\n"


def an_audio_form(*parts: bytes, model: str = "tiny", content: bytes = b"RIFF\r\n\r\n--\x00") -> bytes:
    """Return a form with a model, a file and these parts."""
    return form(field("model", model), file(content), *parts)
