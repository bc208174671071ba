"""A request body into a Call that has been judged, and back into the bytes that are sent.

Owns which members the gateway reads, refuses, takes out and writes. Judges form alone: who may ask and what waits is
decided elsewhere. What was judged is what is sent: a body that needs no change goes on byte for byte.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

from gateway.core.plan import RequestBounds
from gateway.wire import audio_form, strict_json
from gateway.wire.dialects import PromptForm, Route
from gateway.wire.fields import (
    CONTROL_MEMBERS,
    OPERATOR_MEMBERS,
    BadRequest,
    bad,
    missing,
    read_bool,
    read_int,
    read_object,
    read_str,
    unsupported,
)
from gateway.wire.json_flaws import Malformed
from gateway.wire.prompt_forms import BACKGROUND, PROMPT_MEMBERS, judge_prompt

__all__ = ["BadRequest", "Call", "Draft", "body_type", "judge", "parse", "read", "read_quickly"]

_JSON, _FORM = "application/json", "multipart/form-data"
# Lists that the policy's list_items_max does not bound: the prompt's own length is bounded in tokens.
_STOPS = ("stop", "stop_sequences")
_UNBOUNDED_LISTS = frozenset({"messages", "prompt", "input", "tokens", *_STOPS})
# With these the engine's answer depends on computing the prompt in one go, or the prompt is not what it seems.
_WHOLE_PROMPT_MEMBERS = (
    *("echo", "prompt_logprobs", "truncate_prompt_tokens", "use_beam_search"),
    *("previous_response_id", "previous_input_messages", BACKGROUND, *OPERATOR_MEMBERS),
)
# Most bodies have none of them: one look then stands for a look at each.
_SEVERAL = frozenset({"n", "best_of"})
_OPERATOR_HOLDERS = frozenset({*OPERATOR_MEMBERS, "vllm_xargs"})
_WHOLE_PROMPT_NAMES = frozenset(_WHOLE_PROMPT_MEMBERS)
_TEXT_FORMS = frozenset({PromptForm.CHAT, PromptForm.COMPLETION, PromptForm.RESPONSES, PromptForm.MESSAGES})
_RELEASED: Mapping[str, Any] = MappingProxyType({})
_NEWER_OUTPUT_MEMBER = "max_completion_tokens"
# To look up an enum's member costs Python 3.11 as much as a function of three lines.
_CHAT, _AUDIO = PromptForm.CHAT, PromptForm.AUDIO


class Draft(NamedTuple):
    """A body read strictly, of which only the model is judged: enough to say whether the model exists."""

    route: Route
    body: bytes
    members: Mapping[str, Any]
    model: str


@dataclass(slots=True)
class Call:
    """One judged request.

    sequences: what the engine will run at once, prompts x n. output_tokens_stated: per sequence, None: not stated.
    output_tokens_default: what the engine takes where nothing is stated, None: all the context left.
    is_divisible: one prompt, of which prefixes can be computed beforehand without any effect on the answer.
    output_member: the member that states the output limit, or in which one has to be set where none is stated; None:
    nothing is generated.
    members: the parsed body, empty after `release`. present: the names of all its members.
    """

    route: Route
    body: bytes
    members: Mapping[str, Any]
    present: frozenset[str]
    model: str
    stream: bool
    prompts: int
    sequences: int
    output_tokens_stated: int | None
    output_tokens_default: int | None
    output_member: str | None
    is_divisible: bool = False

    @property
    def prompt_member(self) -> str:
        """The member that holds the prompt."""
        return PROMPT_MEMBERS[self.route.form]

    def rewritten(self, *, set_members: Mapping[str, Any]) -> bytes:
        """The bytes to send: without control members, with `set_members`; all else as it came, byte for byte."""
        if self.route.form is PromptForm.AUDIO:
            return audio_form.rewritten(self.body, set_members)
        return strict_json.rewrite(self.body, remove=CONTROL_MEMBERS, put=set_members, present=self.present)

    def release(self) -> None:
        """Let go of the parsed members, which nobody needs while the request waits and runs."""
        self.members = _RELEASED


def body_type(route: Route, stated: str) -> str:
    """The Content-Type that the body goes on with. stated: the caller's, "" for none. BadRequest: it is another kind.

    The engine refuses another kind too, but only once the request has had its turn. And what a web page may send to a
    host that is not its own without asking, a text or a form, is never JSON.
    """
    expected = _FORM if route.form is PromptForm.AUDIO else _JSON
    if stated.partition(";")[0].strip().lower() not in ("", expected):
        raise bad("unsupported_content_type", f"The Content-Type has to be {expected}.", "content-type")
    return stated if expected == _FORM else _JSON


def parse(route: Route, body: bytes, bounds: RequestBounds, allowed_engine_fields: frozenset[str]) -> Call:
    """The whole judgement of a JSON body. BadRequest: the refusal, with code and param."""
    return judge(read(route, body), bounds, allowed_engine_fields)


def read(route: Route, body: bytes, content_type: str = "") -> Draft:
    """The body's members and its model, before anything else of it is judged. content_type: of a form."""
    if route.form is _AUDIO:
        return _draft(route, body, audio_form.members_of(body, content_type))
    try:
        members = strict_json.parse(body)
    except Malformed as malformed:
        raise bad(malformed.code, malformed.message, malformed.param) from None
    return _draft(route, body, members)


def read_quickly(route: Route, body: bytes, content_type: str = "") -> Draft | None:
    """What `read` gives; None where it takes much longer, as to find out which member of a body is wrong."""
    if route.form is _AUDIO:
        return read(route, body, content_type)
    members = strict_json.parsed_quickly(body)
    return None if members is None else _draft(route, body, members)


def _draft(route: Route, body: bytes, members: Mapping[str, Any]) -> Draft:
    model = read_str(members, "model")
    if not model:
        raise missing("model")
    return Draft(route, body, members, model)


def judge(draft: Draft, bounds: RequestBounds, allowed_engine_fields: frozenset[str]) -> Call:
    """The draft's other members, as far as the gateway goes by them."""
    members = draft.members
    _refuse_operator_members(members, allowed_engine_fields)
    prompts = judge_prompt(draft.route.form, members, allowed_engine_fields)
    _judge_lists(members, bounds)
    output_member = _output_member(members, draft.route)
    return Call(
        route=draft.route,
        body=draft.body,
        members=members,
        present=frozenset(members),
        model=draft.model,
        stream=read_bool(members, "stream"),
        prompts=prompts,
        sequences=_sequences(members, prompts, bounds, draft.route.form),
        output_tokens_stated=_output_tokens(members, output_member, draft.route),
        output_tokens_default=draft.route.output_tokens_default,
        output_member=output_member,
        is_divisible=draft.route.form in _TEXT_FORMS
        and prompts == 1
        and (_WHOLE_PROMPT_NAMES.isdisjoint(members) or not any(map(members.get, _WHOLE_PROMPT_MEMBERS))),
    )


def _refuse_operator_members(members: Mapping[str, Any], allowed: frozenset[str]) -> None:
    if _OPERATOR_HOLDERS.isdisjoint(members):
        return
    extra = members.get("vllm_xargs")  # vLLM reads some of these members from here too
    for name in OPERATOR_MEMBERS:
        if name not in allowed:
            if members.get(name) is not None:
                raise unsupported(name)
            if isinstance(extra, Mapping) and extra.get(name) is not None:
                raise unsupported(f"vllm_xargs.{name}")


def _judge_lists(members: Mapping[str, Any], bounds: RequestBounds) -> None:
    for name in _STOPS:
        stop = members.get(name)
        if type(stop) is list:
            _bound(len(stop), bounds.stop_max, name)
    for name, value in members.items():
        if type(value) is list and name not in _UNBOUNDED_LISTS:
            _bound(len(value), bounds.list_items_max, name)
    structured = members.get("structured_outputs")
    if type(structured) is dict and type(choice := structured.get("choice")) is list:
        _bound(len(choice), bounds.list_items_max, "structured_outputs.choice")
    if "logit_bias" in members and (logit_bias := read_object(members, "logit_bias")) is not None:
        _bound(len(logit_bias), bounds.list_items_max, "logit_bias")


def _bound(items: int, items_max: int, param: str) -> None:
    if items > items_max:
        message = f"{param} holds {items} items; at most {items_max} are accepted."
        raise bad("array_above_max_length", message, param, limit=items_max, observed=items)


def _sequences(members: Mapping[str, Any], prompts: int, bounds: RequestBounds, form: PromptForm) -> int:
    if prompts == 1 and _SEVERAL.isdisjoint(members):
        return 1
    each = read_int(members, "n", minimum=1) or 1
    param = "n" if each > 1 or prompts == 1 else PROMPT_MEMBERS[form]
    best_of = read_int(members, "best_of", minimum=1) or 1
    if best_of > each:
        each, param = best_of, "best_of"
    sequences = prompts * each
    if sequences > bounds.sequences_max:
        message = (
            f"The request asks for {sequences} sequences at once; at most {bounds.sequences_max} are accepted "
            "(the policy's request.sequences_max). Send smaller batches, or have that raised."
        )
        raise bad("too_many_sequences", message, param, limit=bounds.sequences_max, observed=sequences)
    return sequences


def _output_member(members: Mapping[str, Any], route: Route) -> str | None:
    """Chat has a newer name beside the one that every form has, and it wins where it is stated."""
    if route.form is _CHAT and route.output_member and members.get(_NEWER_OUTPUT_MEMBER) is not None:
        read_int(members, route.output_member, minimum=1)
        return _NEWER_OUTPUT_MEMBER
    return route.output_member


def _output_tokens(members: Mapping[str, Any], name: str | None, route: Route) -> int | None:
    """The stated output limit of one sequence."""
    if name is None:
        return None
    if route.output_is_required and members.get(name) is None:
        raise missing(name)
    # Echo alone generates nothing for the caller, and the engine runs one token for it.
    only_echo = members.get("echo") is True and "prompt" in members and members.get(name) == 0
    return 1 if only_echo else read_int(members, name, minimum=1)
