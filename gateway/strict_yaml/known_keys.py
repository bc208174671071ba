"""Which keys a model knows at a place in a document, and what to write instead of one that it does not.

Owns the walk through a model's JSON Schema along the location of an error.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel

Schema = dict[str, Any]


def advice(model: type[BaseModel], location: Sequence[str | int]) -> str:
    """The fix for the unknown key at the end of `location`."""
    *places, key = location
    known = _known_keys(model.model_json_schema(), places)
    if not known:
        return "Remove it; nothing may be set here"
    near = difflib.get_close_matches(str(key), known, n=1)
    return f"Write `{near[0]}` if that is meant" if near else f"Known keys here: {', '.join(known)}"


def _known_keys(root: Schema, places: Sequence[str | int]) -> list[str]:
    here = root
    for place in places:
        here = _below(_resolved(here, root), place)
    return list(_resolved(here, root).get("properties", {}))


def _resolved(schema: Schema, root: Schema) -> Schema:
    """Past references and past `or null`."""
    while "$ref" in schema or "anyOf" in schema:
        if "$ref" in schema:
            schema = root["$defs"][schema["$ref"].rsplit("/", 1)[-1]]
        else:
            schema = next(option for option in schema["anyOf"] if option.get("type") != "null")
    return schema


def _below(schema: Schema, place: str | int) -> Schema:
    if isinstance(place, int):
        below: Schema = schema["items"]
    elif "discriminator" in schema:
        below = {"$ref": schema["discriminator"]["mapping"][place]}
    elif "properties" in schema:
        below = schema["properties"][place]
    elif "patternProperties" in schema:
        (below,) = schema["patternProperties"].values()
    else:
        below = schema["additionalProperties"]
    return below
