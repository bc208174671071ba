"""Which templates keep content verbatim, and that what is kept for one conversation holds for all of its shape."""

from __future__ import annotations

from typing import Any

import jinja2
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.counting.chat_template import ChatTemplate
from gateway.counting.model_files import ModelFiles
from gateway.counting.rendering import ChatRenderer
from gateway.counting.shapes import MESSAGES_MAX, SHAPES_MAX, Shapes, plain_of

LOOP = "{% for m in messages %}"
PLAIN = LOOP + "<{{ m.role }}>{{ m.content }}{% endfor %}"
TRIMMED = (
    LOOP + "{% set text = '<' + m['role'] + '>' + m['content'] | trim + '|' %}{% if loop.index0 == 0 %}"
    "{% set text = bos_token + text %}{% endif %}{{ text }}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)
FIRST_APART = (
    "{% if messages[0]['role'] == 'system' %}{{ messages[0]['content'] ~ '\n\n' }}{% else %}{{ 'Be kind.' }}{% endif %}"
    "{% for m in messages[1:] %}{% if m.content %}{{ (m.role ~ ': ' ~ m.content) | trim }}{% endif %}{% endfor %}"
)
GUARDED = (
    LOOP + "{% if m.content is defined and m.content is not none and m.content is string %}{{ m.content + eos_token }}"
    "{% endif %}{% for call in m.tool_calls or [] %}{{ call | tojson }}{% endfor %}{{ loop.last }}{% endfor %}"
)
CHOSEN = LOOP + "{{ m.content if m.role == 'user' else m.content | trim }}\n{{ messages | length }}{% endfor %}"
STRICT = (
    LOOP + "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Roles alternate.') }}{% endif %}"
    "[{{ m.content | trim }}]{% endfor %}"
)
KEPT = [PLAIN, TRIMMED, FIRST_APART, GUARDED, CHOSEN, STRICT]


@pytest.mark.parametrize("source", [*KEPT, "no messages", LOOP + "{{ m.role }}{% endfor %}"])
def test_a_template_that_only_writes_content_keeps_it_verbatim(source: str) -> None:
    assert ChatTemplate(source).shapes is not None


@pytest.mark.parametrize(
    "inside",
    [
        "{{ m.content | upper }}",
        "{{ m.content | length }}",
        "{{ m.content[0] }}",
        "{{ m.content[:9] }}",
        "{{ m.content.split('</think>')[-1] }}",
        "{{ m['content'].strip() }}",
        "{{ '%s' % m.content }}",
        "{{ m.content | trim('x') }}",
        "{{ ('a' | safe) + m.content }}",
        "{{ [m.content] | join }}",
        "{{ (['a'] | map('safe') | first) + m.content }}",
        "{{ (['a'] | map(chosen) | first) + m.content }}",
        "{{ (['a'] | map(*chosen) | first) + m.content }}",
        "{{ m.content }}{{ [[1, 2]] | map('random') | list }}",
        "{{ m | tojson }}",
        "{{ m.get('content') }}",
        "{{ m.items() | list }}",
        "{{ m['con' + 'tent'] }}",
        "{{ m[name] }}",
        "{{ messages }}",
        "{{ messages[0] }}",
        "{{ messages | last }}",
        "{{ (messages | last).content }}",
        "{{ messages[m.content | length].role }}",
        "{{ messages[m.content | length:][0].role }}",
        "{{ messages[m.content | length:][0].content }}",
        "{{ ('' if messages[m.content | length:][0].content else 'x') }}",
        "{{ loop.previtem.content | length }}",
        "{{ loop.changed(m.content) }}",
        "{{ loop.cycle(m.content, 'a') }}",
        "{{ 'yes' if m.content == 'x' }}",
        "{{ 'yes' if 'x' in m.content }}",
        "{{ 'yes' if m.content is eq 'x' }}",
        "{{ 'yes' if m.content is lower }}",
        "{% if m.content == 'x' %}x{% endif %}",
        "{% if m.content[0] %}x{% endif %}",
        "{% if (m.content + 'a') | length > 9 %}x{% endif %}",
        "{% set c = m.content %}{{ c | length }}",
        "{% set c = m.content %}{% set d = c ~ '' %}{{ d.split('x') }}",
        "{% set ns = namespace(c='') %}{% set ns.c = m.content %}{{ ns.c }}",
        "{% set c = [m.content] %}{{ c }}",
        "{% set c %}{{ m.content }}{% endset %}{{ c | length }}",
        "{% filter upper %}{{ m.content }}{% endfilter %}",
        "{% macro show(c) %}{{ c }}{% endmacro %}{{ show(m.content) }}",
        "{% macro show() %}{{ m.content }}{% endmacro %}{{ show() | length }}",
        "{% with c = m.content %}{{ c }}{% endwith %}",
        "{% for letter in m.content %}{{ loop.index }}{% endfor %}",
        "{% for word in [m.content] %}{{ word | length }}{% endfor %}",
        "{% for m in [m.content] %}{{ m }}{% endfor %}",
        "{% set m = m.content %}{{ m | length }}",
        "{% set all = messages %}{{ all }}",
        "{% block b %}{{ m.content }}{% endblock %}",
        "{% autoescape true %}{{ m.content }}{% endautoescape %}",
        "{{ m.content }}{{ strftime_now('%H') }}",
        "{{ m.content }}{{ [1, 2] | random }}",
        "{{ m.content }}{{ lipsum() }}",
    ],
)
def test_a_template_that_does_more_with_content_is_not_taken_for_one_that_writes_it(inside: str) -> None:
    try:
        shapes = ChatTemplate(LOOP + inside + "{% endfor %}").shapes
    except jinja2.TemplateSyntaxError:
        shapes = None
    assert shapes is None


@pytest.mark.parametrize(
    "around", ["{% for m in messages if m.content %}{{ m.role }}{% endfor %}", "{{ messages[1:] }}"]
)
def test_a_template_that_picks_messages_is_none_either(around: str) -> None:
    assert ChatTemplate(around).shapes is None


CONTENT = st.text(st.sampled_from([*"ab <>{}%", "\n", "\u2003", "\u00a0", "é", "😀", "\x1c"]), max_size=8)
CONVERSATIONS = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(["system", "user", "assistant", "tool"]), "content": CONTENT}),
    min_size=1,
    max_size=5,
)
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}


def renderer(source: str, tokenizer: Any = None) -> ChatRenderer:
    return ChatRenderer(ModelFiles(tokenizer, {"default": source}, SPECIAL, ""))


def outcome(renderer: ChatRenderer, members: dict[str, Any]) -> str | None:
    try:
        return renderer.rendered(members)
    except Exception as error:  # noqa: BLE001 - that both refuse alike is the claim
        return type(error).__name__ + str(error)


RENDERERS = {source: (renderer(source), renderer(source)) for source in KEPT}


@pytest.mark.parametrize("source", KEPT)
@given(st.lists(CONVERSATIONS, min_size=1, max_size=4), st.booleans())
@example([[{"role": "user", "content": "x"}], [{"role": "user", "content": " x\n"}]], True)
def test_what_is_kept_is_what_is_rendered(source: str, conversations: list[Any], add_generation_prompt: bool) -> None:
    keeping, rendering = RENDERERS[source]
    assert keeping._default is not None and rendering._default is not None
    keeping._default.shapes, rendering._default.shapes = Shapes(), None
    for messages in conversations:
        members = {"messages": messages, "add_generation_prompt": add_generation_prompt}
        assert outcome(keeping, members) == outcome(rendering, members)


def conversation(*contents: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": content} for content in contents]


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "user", "content": "a", "name": "b"}],
        [{"role": "user"}, {"role": "user", "content": "a"}],
        [{"role": "developer", "content": "a"}],
        [{"role": "user", "content": [{"type": "text", "text": "a"}]}],
        conversation(" \n"),
        conversation(""),
        [{"role": "system", "content": "x-billing: 1\na"}],
        conversation(*"a" * (MESSAGES_MAX + 1)),
    ],
)
def test_a_conversation_with_more_to_it_than_roles_and_texts_is_rendered(messages: list[dict[str, Any]]) -> None:
    assert plain_of(messages, "x-billing") is None


@pytest.mark.parametrize(
    "member", ["tools", "documents", "chat_template_kwargs", "reasoning_effort", "continue_final_message"]
)
def test_what_a_template_may_be_given_besides_messages_is_rendered(member: str) -> None:
    told = renderer(LOOP + "{{ m.content }} {% endfor %}{{ tools }}{{ documents }}{{ reasoning_effort }}{{ a }}")
    members = {"messages": conversation("Hi")}
    values = {"continue_final_message": True, "chat_template_kwargs": {"a": "b"}, "reasoning_effort": "low"}
    assert told.rendered(members | {member: values.get(member, [])}) != told.rendered(members)


def test_a_shape_that_does_not_give_what_was_rendered_is_not_kept() -> None:
    shapes = Shapes()
    plain = plain_of(conversation("Hi"), "x")
    assert plain is not None

    def cutting(messages: Any, _add_generation_prompt: bool) -> str:
        return str(messages[0]["content"][:40])

    for _ in range(2):
        assert shapes.pieces(plain, True, cutting) == ["Hi"]
    assert not shapes._kept


def test_the_kept_shapes_are_bounded() -> None:
    shapes = Shapes()

    def joined(messages: Any, _add_generation_prompt: bool) -> str:
        return "".join(message["role"] + message["content"] for message in messages)

    roles = ["system", "user", "assistant", "tool"]
    for number in range(SHAPES_MAX + 2):
        digits = [roles[number // 4**place % 4] for place in range(6)]
        plain = plain_of([{"role": role, "content": "x"} for role in digits], "y")
        assert plain is not None
        assert "".join(shapes.pieces(plain, True, joined)) == "".join(role + "x" for role in digits)
        assert len(shapes._kept) <= SHAPES_MAX
