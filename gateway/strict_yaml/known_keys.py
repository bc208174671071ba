"""Which keys a model knows at a place in a document, what to write instead of one that it does not, and examples.

Owns the walk through a model's JSON Schema along the location of an error.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Sequence
from typing import Any

import yaml

Schema = dict[str, Any]
Location = Sequence[str | int]


def advice(root: Schema, location: Location) -> str:
    """The fix for the unknown key at the end of `location`."""
    known = list(_known(root, location))
    if not known:
        return "Remove it; nothing may be set here"
    near = meant(root, location)
    return f"Known keys here: {', '.join(known)}" if near is None else f"Write `{near}` if that is meant"


def meant(root: Schema, location: Location) -> str | None:
    """The known key that the unknown one at the end of `location` is a slip of the pen for."""
    near = difflib.get_close_matches(str(location[-1]), _known(root, location), n=1)
    return near[0] if near else None


def example(root: Schema, location: Location) -> str | None:
    """`key: value` for the known key at the end of `location`, in one line, where its field has an example."""
    key = str(location[-1])
    examples = _known(root, location)[key].get("examples")
    if not examples:
        return None
    return yaml.safe_dump({key: examples[0]}, default_flow_style=True, width=math.inf).strip()[1:-1]


def _known(root: Schema, location: Location) -> Schema:
    """The keys that stand beside the last one of `location`, with the schema of each."""
    here = root
    for place in location[:-1]:
        here = _below(_resolved(here, root), place)
    known: Schema = _resolved(here, root).get("properties", {})
    return known


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
