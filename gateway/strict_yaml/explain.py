"""From a pydantic error to a ConfigError: the key path as it is written in the file, the fault, the fix.

Owns the wording. Numbers and booleans are quoted back, text never is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from gateway.strict_yaml.document import Value
from gateway.strict_yaml.errors import PROBLEM_TYPE, ConfigError, joined
from gateway.strict_yaml.known_keys import advice

_Told = tuple[str, str]


def explained(error: ValidationError, document: Value, model: type[BaseModel], file: str) -> ConfigError:
    """One fault of `error` in full, and how many more there are in the same file.

    An unknown key comes first: where it is a slip of the pen, it explains why another key is missing.
    """
    faults = error.errors(include_url=False)
    first = next((fault for fault in faults if fault["type"] == "extra_forbidden"), faults[0])
    path = _key_path(first, document)
    if first["type"] == "extra_forbidden":
        problem, fix = "is not a known key", advice(model, first["loc"])
    else:
        problem, fix = _told(first)
    if len(faults) > 1:
        fix = f"{fix}. {_more(len(faults) - 1)}"
    return ConfigError(file, path, problem, fix)


def _more(count: int) -> str:
    return f"{count} more fault{'s' if count > 1 else ''} in this file"


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


def _told(fault: ErrorDetails) -> _Told:
    kind = fault["type"]
    context = fault.get("ctx", {})
    given = fault["input"]
    if kind == PROBLEM_TYPE:
        return context["problem"], context["fix"]
    if kind == "missing":
        return "is missing", "Add it"
    if given is None and kind in _TYPE_WORDS:
        return "has no value", f"Give it {_TYPE_WORDS[kind]}, or remove the key"
    if kind in _TYPE_WORDS:
        return f"should be {_TYPE_WORDS[kind]}, not {_shown(given)}", _type_fix(kind, given)
    if kind in _RULES:
        return _RULES[kind](context, given)
    return fault["msg"][:1].lower() + fault["msg"][1:], "Correct the value"


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
    shown = "text that is" if isinstance(given, str) else f"{_shown(given)}, which is"
    return f"is {shown} none of the known values", f"Use {context['expected']}"


def _tag(context: Mapping[str, Any], given: object) -> _Told:
    del given
    return "is none of the known kinds", f"Use one of {context['expected_tags']}"


def _tag_missing(context: Mapping[str, Any], given: object) -> _Told:
    del context, given
    return "is missing", "State which kind is meant"


def _too_few(context: Mapping[str, Any], given: object) -> _Told:
    del given
    return f"has fewer than {context['min_length']} entries", "Add one"


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
    "too_long": _too_many,
}
