"""Content parts of messages that are not text: which kind they are, and where they would be fetched from.

Owns the ways in which the engine recognises a medium in a part. Never decodes and never fetches one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any


class Medium(StrEnum):
    """What a part holds, where the engine's tokens for it cannot be counted from text."""

    IMAGE = "image"
    AUDIO = "audio"
    VIDEO = "video"


# The engine goes by `type`, and where that is missing by the member that holds the medium: both are looked at.
MEDIUM_OF_PART: Mapping[str, Medium] = {
    "image_url": Medium.IMAGE,
    "input_image": Medium.IMAGE,
    "image_pil": Medium.IMAGE,
    "image_embeds": Medium.IMAGE,
    "audio_url": Medium.AUDIO,
    "input_audio": Medium.AUDIO,
    "audio_embeds": Medium.AUDIO,
    "video_url": Medium.VIDEO,
    "video_embeds": Medium.VIDEO,
}
URL_MEMBERS = ("image_url", "audio_url", "video_url", "file_url")
EMBEDDED_PARTS = ("prompt_embeds", "image_embeds", "audio_embeds", "video_embeds")


def parts(holders: Sequence[Any], name: str = "messages") -> Iterable[tuple[str, Mapping[str, Any]]]:
    """Each structured content part of the messages, with its path; what a tool answered is inside of one.

    name: the member that holds them.
    """
    for holder in holders:
        if isinstance(holder, dict) and isinstance(holder.get("content"), list):
            return _parts(holders, name)
    return ()  # most messages are plain text, and each is looked at more than once


def _parts(holders: Sequence[Any], name: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for index, holder in enumerate(holders):
        if isinstance(holder, dict) and isinstance(content := holder.get("content"), list):
            yield from parts_of(content, f"{name}[{index}].content")


def parts_of(content: Any, path: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Each structured part of one content, and what is inside of it, with its path."""
    if isinstance(content, list):
        for position, part in enumerate(content):
            if isinstance(part, dict):
                yield f"{path}[{position}]", part
                yield from parts_of(part.get("content"), f"{path}[{position}].content")


def medium(part: Mapping[str, Any]) -> Medium | None:
    """What the part holds besides text; None: text alone, or a kind that the engine does not know."""
    kind = part.get("type")
    if isinstance(kind, str) and kind in MEDIUM_OF_PART:
        return MEDIUM_OF_PART[kind]
    return next((found for name, found in MEDIUM_OF_PART.items() if name in part), None)


def embedded(part: Mapping[str, Any]) -> str | None:
    """The name under which the part carries tensors, which only an engine's operator may send."""
    return next((name for name in EMBEDDED_PARTS if part.get("type") == name or name in part), None)


def foreign_url(part: Mapping[str, Any]) -> str | None:
    """The member of the part that names something to be fetched instead of carrying it, e.g. `image_url.url`."""
    for name in URL_MEMBERS:
        value = part.get(name)
        path = name
        if isinstance(value, dict):
            path, value = f"{name}.url", value.get("url")
        if value is not None and not _is_carried(value):
            return path
    source = part.get("source")
    if isinstance(source, dict) and source.get("type") == "url" and not _is_carried(source.get("url")):
        return "source.url"
    return None


def _is_carried(url: Any) -> bool:
    return isinstance(url, str) and url[:5].lower() == "data:"
