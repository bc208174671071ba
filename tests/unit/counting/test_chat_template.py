from __future__ import annotations

from typing import Any

import jinja2
import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment

from gateway.counting.chat_template import ChatTemplate, ContentFormat

SANDBOX = ImmutableSandboxedEnvironment()
HELLO = [{"role": "user", "content": "hello"}]


def rendered(source: str, conversation: Any = HELLO, **given: Any) -> str:
    options = {
        "tools": None,
        "documents": None,
        "add_generation_prompt": False,
        "continue_final_message": False,
        "variables": {},
    }
    return "".join(ChatTemplate(source).render(conversation, **(options | given)))


def test_blocks_leave_no_space_of_their_own() -> None:
    assert (
        rendered("{% for m in messages %}\n    {% if true %}\n[{{ m.content }}]\n    {% endif %}\n{% endfor %}\n")
        == "[hello]\n"
    )


def test_json_is_written_plainly_with_the_authors_options() -> None:
    value = {"z": "<é'&>", "a": [1, None]}
    assert rendered("{{ x | tojson }}", variables={"x": value}) == '{"z": "<é\'&>", "a": [1, null]}'
    assert rendered("{{ x | tojson(indent=1) }}", variables={"x": [1]}) == "[\n 1\n]"
    assert rendered(
        "{{ x | tojson(sort_keys=true, separators=(',', ':'), ensure_ascii=true) }}", variables={"x": value}
    ) == ('{"a":[1,null],"z":"<\\u00e9\'&>"}')


def test_loop_controls_and_generation_blocks_are_known() -> None:
    source = "{% for m in [1, 2, 3] %}{% if m == 2 %}{% continue %}{% endif %}{{ m }}{% endfor %}"
    assert rendered(source) == "13"
    assert (
        rendered("a{% generation %}{% set x = 1 %}{{ messages[0].content }}{% endgeneration %}{{ x is defined }}")
        == "ahelloFalse"
    )


def test_a_template_can_refuse_a_conversation() -> None:
    with pytest.raises(jinja2.TemplateError, match="no system"):
        rendered("{{ raise_exception('no system') }}")


@pytest.mark.parametrize("member", ["content", "missing", "items", "__class__", "0", "clear"])
@pytest.mark.parametrize(
    "expression",
    ["x.{}", "x['{}']", "x.{} is defined", "x.{} is none", "x.{} or 'or'", "x.{}.y is defined", "x.y['{}']"],
)
@pytest.mark.parametrize(
    "x", [{"content": "c", "items": None, "y": {"content": 1}}, {}, {"0": [1]}, "text", ["a"], None]
)
def test_a_member_is_found_as_the_librarys_own_sandbox_finds_it(expression: str, member: str, x: Any) -> None:
    source = "{{ " + expression.format(member) + " }}"
    found = []
    for render in (lambda: rendered(source, variables={"x": x}), lambda: SANDBOX.from_string(source).render(x=x)):
        try:
            found.append(render())
        except jinja2.TemplateError as error:
            found.append(repr(error))
    assert found[0] == found[1] or ("built-in method" in found[0] and "built-in method" in found[1])


def test_a_template_can_tell_the_date() -> None:
    assert rendered("{{ strftime_now('%%') }}{{ strftime_now is defined }}") == "%True"


@pytest.mark.parametrize(
    "source", ["{{ ''.__class__.__mro__ }}", "{{ messages.append(1) }}", "{{ tools.update(a=1) }}"]
)
def test_a_template_cannot_leave_its_sandbox_or_change_what_it_is_given(source: str) -> None:
    with pytest.raises(jinja2.exceptions.SecurityError):
        rendered(source, tools={})


@pytest.mark.parametrize(
    ("source", "content_format"),
    [
        ("{% for m in messages %}{{ m.content }}{% endfor %}", ContentFormat.STRING),
        ("{% for m in messages %}{% for p in m.content %}{% endfor %}{% endfor %}", ContentFormat.PARTS),
        ("{% for m in messages %}{% for p in m['content'] | list %}{% endfor %}{% endfor %}", ContentFormat.PARTS),
        ("{% for m in messages[1:] %}{% for p in m['content'] %}{% endfor %}{% endfor %}", ContentFormat.PARTS),
        ("{% set ms = messages %}{% set r = ms[1:] %}{% for m in r %}{% for p in m.content %}{% endfor %}{% endfor %}", ContentFormat.PARTS),
        ("{% for m in messages %}{% set content = m.content %}{% for p in content %}{% endfor %}{% endfor %}", ContentFormat.PARTS),
        ("{% macro show(c) %}{% for p in c %}{% endfor %}{% endmacro %}{% for m in messages %}{{ show(m.content) }}{% endfor %}", ContentFormat.PARTS),
        ("{% macro show(c) %}{% for p in c %}{% endfor %}{% endmacro %}{% for m in messages %}{{ show(c=m.content) }}{% endfor %}", ContentFormat.PARTS),
        ("{% macro show(c) %}{% for p in c %}{% endfor %}{% endmacro %}{% for m in messages %}{{ show(m.tools) }}{{ m.content }}{% endfor %}", ContentFormat.STRING),
        ("{% macro show(content) %}{% for p in content %}{% endfor %}{% endmacro %}{% for m in messages %}{{ m.content }}{% endfor %}", ContentFormat.STRING),
        ("{% for m in messages %}{% for c in m.tool_calls %}{% endfor %}{{ m.content }}{% endfor %}", ContentFormat.STRING),
        ("no loops", ContentFormat.STRING),
    ],
)  # fmt: skip
def test_the_form_of_content_is_told_from_the_templates_loops(source: str, content_format: ContentFormat) -> None:
    assert ChatTemplate(source).content_format is content_format


def test_a_final_message_is_cut_after_its_words() -> None:
    source = "{% for m in messages %}<{{ m.role }}>{{ m.content }}</{{ m.role }}>{% endfor %}"
    conversation = [*HELLO, {"role": "assistant", "content": "She was "}]
    assert rendered(source, conversation, continue_final_message=True) == "<user>hello</user><assistant>She was "
    trimming = source.replace("m.content", "m.content | trim")
    assert rendered(trimming, conversation, continue_final_message=True) == "<user>hello</user><assistant>She was"
    assert conversation[-1] == {"role": "assistant", "content": "She was "}, "the conversation is left as it was"


def test_a_final_message_of_parts_is_cut_after_its_last_text() -> None:
    source = "{% for m in messages %}{% for p in m.content %}({{ p.text }}){% endfor %}!{% endfor %}"
    conversation = [{"role": "assistant", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]
    assert rendered(source, conversation, continue_final_message=True) == "(a)(b"


@pytest.mark.parametrize(
    ("source", "content"),
    [
        ("{{ messages[-1].role }} content", "hello"),
        ("{{ messages[-1].content }}", None),
        ("{% for p in messages[-1].content %}{% endfor %}", [{"type": "image"}]),
        ("nothing of it", "hello"),
    ],
)
def test_a_final_message_that_the_template_drops_cannot_be_continued(source: str, content: Any) -> None:
    with pytest.raises(ValueError, match="continue"):
        rendered(source, [{"role": "assistant", "content": content}], continue_final_message=True)
