from __future__ import annotations

import pytest

from gateway.wire import media
from gateway.wire.media import Medium

DATA = "data:image/png;base64,AAAA"


@pytest.mark.parametrize(
    ("part", "medium"),
    [
        ({"type": "text", "text": "x"}, None),
        ({"type": "refusal", "refusal": "x"}, None),
        ({"type": "image_url", "image_url": {"url": DATA}}, Medium.IMAGE),
        ({"type": "input_image", "image_url": DATA}, Medium.IMAGE),
        ({"image_url": DATA}, Medium.IMAGE),
        ({"type": "text", "text": "x", "image_url": DATA, "uuid": "u"}, Medium.IMAGE),
        ({"type": "input_audio", "input_audio": {"data": "A", "format": "wav"}}, Medium.AUDIO),
        ({"type": "video_url", "video_url": {"url": "data:video/mp4;base64,A"}}, Medium.VIDEO),
        ({"type": 5}, None),
    ],
)
def test_a_part_is_known_by_its_type_or_by_what_it_holds(part: dict, medium: Medium | None) -> None:
    assert media.medium(part) is medium


@pytest.mark.parametrize(
    "url",
    [
        "http://169.254.169.254/latest",
        "https://example.com/a.png",
        "file:///etc/passwd",
        "http://[::1]/",
        "http://2130706433/",
        "//host/x",
        " data:image/png;base64,A",
        "datas:x",
        "",
        5,
        ["data:x"],
    ],
)
@pytest.mark.parametrize("member", media.URL_MEMBERS)
def test_only_what_is_carried_along_is_no_foreign_url(member: str, url: object) -> None:
    assert media.foreign_url({"type": member, member: {"url": url}}) == f"{member}.url"
    if not isinstance(url, dict):
        assert media.foreign_url({member: url}) == member


@pytest.mark.parametrize("url", [DATA, "DATA:audio/wav;base64,A", None])
def test_a_data_url_and_an_absent_one_fetch_nothing(url: str | None) -> None:
    assert media.foreign_url({"image_url": {"url": url}}) is None
    assert media.foreign_url({"audio_url": url}) is None


def test_parts_are_found_with_their_place() -> None:
    messages = [{"content": "x"}, {"content": ["a", {"type": "text"}]}, {}, "odd", {"content": {"type": "text"}}]
    assert list(media.parts(messages)) == [("messages[1].content[1]", {"type": "text"})]


def test_tensors_in_a_part_are_named() -> None:
    assert media.embedded({"type": "prompt_embeds", "data": "A"}) == "prompt_embeds"
    assert media.embedded({"image_embeds": "A"}) == "image_embeds"
    assert media.embedded({"type": "text", "text": "x"}) is None


def test_a_part_inside_of_a_tools_answer_is_found_with_its_place() -> None:
    image = {"type": "image", "source": {"type": "url", "url": "http://x/"}}
    answer = {"type": "tool_result", "content": [{"type": "text", "text": "x"}, image]}
    places = [place for place, _ in media.parts([{"content": [answer]}])]
    assert places == [
        "messages[0].content[0]",
        "messages[0].content[0].content[0]",
        "messages[0].content[0].content[1]",
    ]


@pytest.mark.parametrize("url", ["http://169.254.169.254/", None, 5])
def test_a_source_that_names_a_url_is_foreign(url: object) -> None:
    assert media.foreign_url({"type": "image", "source": {"type": "url", "url": url}}) == "source.url"


@pytest.mark.parametrize(
    "source", [{"type": "base64", "data": "A", "url": "http://x/"}, {"type": "url", "url": DATA}, "x"]
)
def test_a_source_that_carries_its_image_is_none(source: object) -> None:
    assert media.foreign_url({"type": "image", "source": source}) is None
