"""From a pydantic error to a ConfigError: the key paths as they are written in the file, the faults, the fixes.

Owns the wording. Numbers and booleans are quoted back, text only where it is a short word in place of a known one.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from gateway.strict_yaml.document import Value
from gateway.strict_yaml.errors import FAULTS_TOLD_MAX, PROBLEM_TYPE, ConfigError, Fault, joined, quoting
from gateway.strict_yaml.known_keys import Schema, advice, example, meant

_Told = tuple[str, str]


def explained(error: ValidationError, document: Value, model: type[BaseModel], file: str) -> ConfigError:
    """The faults of `error`, unknown keys first."""
    schema = model.model_json_schema()
    faults = _own(error.errors(include_url=False), schema)
    first, *others = (Fault(_key_path(fault, document), *_told(fault, schema)) for fault in faults[:FAULTS_TOLD_MAX])
    untold = max(0, len(faults) - FAULTS_TOLD_MAX)
    return ConfigError(file, first.key_path, first.problem, first.fix, others=others, untold=untold)


def _own(faults: Sequence[ErrorDetails], schema: Schema) -> list[ErrorDetails]:
    """Without those that another one explains.

    A list whose only item is at fault is reported as too short as well; a key that is written with a slip of the pen
    is reported as unknown, and once more as missing.
    """
    holders = {fault["loc"][:end] for fault in faults for end in range(len(fault["loc"]))}
    slips = {
        (*fault["loc"][:-1], meant(schema, fault["loc"])) for fault in faults if fault["type"] == "extra_forbidden"
    }
    own = [
        fault
        for fault in faults
        if fault["loc"] not in holders and not (fault["type"] == "missing" and fault["loc"] in slips)
    ]
    return sorted(own, key=lambda fault: fault["type"] != "extra_forbidden")


def _key_path(fault: ErrorDetails, document: Value) -> str:
    """`engines[0].url`. Steps of pydantic's own, such as the tag of a union, are left out."""
    location = fault["loc"]
    context = fault.get("ctx", {})
    below = context.get("at", "") if fault["type"] == PROBLEM_TYPE else ""
    if fault["type"].startswith("union_tag"):
        below = context["discriminator"].strip("'")
    path = ""
    here: Any = document
    for index, step in enumerate(location):
        is_missing_key = fault["type"] == "missing" and index == len(location) - 1
        if isinstance(step, int):
            path += f"[{step}]"
            here = here[step]
        elif is_missing_key or (isinstance(here, dict) and step in here):
            path = joined(path, step)
            here = here.get(step) if isinstance(here, dict) else None
    return path + below if not path or not below or below.startswith("[") else f"{path}.{below}"


def _told(fault: ErrorDetails, schema: Schema) -> _Told:
    kind = fault["type"]
    context = fault.get("ctx", {})
    given = fault["input"]
    if kind == PROBLEM_TYPE:
        return context["problem"], context["fix"]
    if kind in {"extra_forbidden", "missing"}:
        return _key_told(fault, schema)
    if given is None and kind in _TYPE_WORDS:
        return "has no value", f"Give it {_TYPE_WORDS[kind]}, or remove the key"
    if kind in _TYPE_WORDS:
        return f"should be {_TYPE_WORDS[kind]}, not {_shown(given)}", _type_fix(kind, given)
    if kind in _RULES:
        return _RULES[kind](context, given)
    return fault["msg"][:1].lower() + fault["msg"][1:], "Correct the value"


def _key_told(fault: ErrorDetails, schema: Schema) -> _Told:
    if fault["type"] == "extra_forbidden":
        return "is not a known key", advice(schema, fault["loc"])
    shown = example(schema, fault["loc"])
    return "is missing", "Add it" if shown is None else f"Add it, as in `{shown}`"


_TYPE_WORDS = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "string_type": "text",
    "path_type": "a path",
    "list_type": "a list",
    "tuple_type": "a list",
    "frozen_set_type": "a list",
    "dict_type": "a mapping of keys to values",
    "model_type": "a mapping of keys to values",
    "model_attributes_type": "a mapping of keys to values",
}


def _type_fix(kind: str, given: object) -> str:
    if isinstance(given, str) and kind in {"int_type", "float_type", "bool_type"}:
        return "Write it plainly, without quotes, unit or other text"
    if kind in {"string_type", "path_type"} and isinstance(given, (int, float)):
        return "Put it in quotes"
    if kind.endswith(("list_type", "tuple_type", "frozen_set_type")):
        return "Write it as [item, …]"
    return f"Write {_TYPE_WORDS[kind]}"


def _shown(given: object) -> str:
    match given:
        case bool():
            return str(given).lower()
        case int():
            return str(given)
        case float():
            return f"{given:g}"
        case str():
            return "text"
        case dict():
            return "a mapping"
        case _:
            return "a list"


def _at_least(context: Mapping[str, Any], given: object) -> _Told:
    return f"must be at least {_shown(context['ge'])}, not {_shown(given)}", f"Give {_shown(context['ge'])} or more"


def _above(context: Mapping[str, Any], given: object) -> _Told:
    return f"must be above {_shown(context['gt'])}, not {_shown(given)}", f"Give more than {_shown(context['gt'])}"


def _at_most(context: Mapping[str, Any], given: object) -> _Told:
    return f"must be at most {_shown(context['le'])}, not {_shown(given)}", f"Give {_shown(context['le'])} or less"


def _below(context: Mapping[str, Any], given: object) -> _Told:
    return f"must be below {_shown(context['lt'])}, not {_shown(given)}", f"Give less than {_shown(context['lt'])}"


def _one_of(context: Mapping[str, Any], given: object) -> _Told:
    return _none_of(_words(context["expected"]), given)


def _tag(context: Mapping[str, Any], given: object) -> _Told:
    del given
    return _none_of(_words(context["expected_tags"]), context["tag"])


def _words(listed: str) -> list[str]:
    """`'a', 'b' or 'c'` as a list."""
    return [word.strip("'") for word in re.split(r", | or ", listed)]


def _none_of(choices: Sequence[str], given: object) -> _Told:
    known = f"one of: {', '.join(choices)}" if len(choices) > 1 else choices[0]
    if given is None:
        return "has no value", f"Write {known}"
    if not isinstance(given, str):
        return f"{_shown(given)} is not {known}", f"Write {known if len(choices) == 1 else 'one of these'}"
    near = difflib.get_close_matches(given, choices, n=1)
    fix = f"Write `{near[0]}` if that is meant" if near else "Write one of these"
    return quoting(given, f"is not {known}"), fix


def _tag_missing(context: Mapping[str, Any], given: object) -> _Told:
    del context, given
    return "is missing", "State which kind is meant"


def _too_few(context: Mapping[str, Any], given: object) -> _Told:
    if not given:
        return "is empty", "Add an entry"
    return f"has fewer than {context['min_length']} entries", "Add one"


def _no_text(context: Mapping[str, Any], given: object) -> _Told:
    if not given:
        return "is empty", "Write some text"
    return f"has fewer than {context['min_length']} characters", "Make it longer"


def _too_many(context: Mapping[str, Any], given: object) -> _Told:
    del given
    return f"has more than {context['max_length']} entries", "Remove some"


_RULES: dict[str, Callable[[Mapping[str, Any], object], _Told]] = {
    "greater_than_equal": _at_least,
    "greater_than": _above,
    "less_than_equal": _at_most,
    "less_than": _below,
    "literal_error": _one_of,
    "enum": _one_of,
    "union_tag_invalid": _tag,
    "union_tag_not_found": _tag_missing,
    "too_short": _too_few,
    "string_too_short": _no_text,
    "too_long": _too_many,
}
