"""From YAML text to plain values: mappings with text keys, lists, text, numbers, booleans, null.

Owns what YAML may say here: one document, the core schema of YAML 1.2 (`on` is text, `1e3` a number), no
duplicate keys, no merge keys, no tags, aliases by value. Bounded in depth and in values, aliases expanded.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NoReturn

import yaml

from gateway.strict_yaml.errors import ConfigError, joined

NODES_MAX = 400_000
DEPTH_MAX = 32
INTEGER_DIGITS_MAX = 18

Value = dict[str, "Value"] | list["Value"] | str | int | float | bool | None

_NEVER = re.compile("[\x00\ud800-\udfff]")
_NULL = re.compile(r"(?:~|null|Null|NULL)?")
_BOOLEAN = re.compile(r"true|True|TRUE|false|False|FALSE")
_INTEGER = re.compile(r"[-+]?[0-9]+")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def load(text: str, file: str) -> Value:
    """The one document of `text`; raises ConfigError where there is none, several, or it is not plain."""
    builder = _Builder(file, iter(yaml.parse(text, Loader=_LOADER)))
    try:
        return builder.document()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"line {mark.line + 1}, column {mark.column + 1}" if mark else "unknown place"
        raise ConfigError(
            file, "", f"is not valid YAML at {place}: {error.problem}", "Correct the syntax there"
        ) from None
    except yaml.YAMLError:
        raise ConfigError(
            file, "", "contains a character that YAML does not allow", "Remove control characters"
        ) from None


@dataclass(slots=True)
class _Builder:
    """Builds values from parser events. `nodes` counts every node as often as it is reached by an alias."""

    file: str
    events: Iterator[yaml.Event]
    nodes: int = 0
    anchors: dict[str, tuple[Value, int]] = field(default_factory=dict)

    def document(self) -> Value:
        next(self.events)
        if isinstance(next(self.events), yaml.StreamEndEvent):
            raise ConfigError(self.file, "", "is empty", "Write at least the required keys")
        value = self._value(next(self.events), "", 0)
        next(self.events)
        if not isinstance(next(self.events), yaml.StreamEndEvent):
            raise ConfigError(self.file, "", "holds more than one YAML document", "Keep one, without a second `---`")
        return value

    def _value(self, event: yaml.Event, path: str, depth: int) -> Value:
        if isinstance(event, yaml.AliasEvent):
            return self._aliased(event, path)
        assert isinstance(event, yaml.NodeEvent)
        before = self.nodes
        self._count(1, path)
        if depth > DEPTH_MAX:
            self._refuse(path, f"is nested more than {DEPTH_MAX} levels deep", "Flatten it")
        value: Value
        if isinstance(event, yaml.ScalarEvent):
            value = self._scalar(event, path)
        elif isinstance(event, yaml.SequenceStartEvent):
            value = self._list(event, path, depth)
        else:
            assert isinstance(event, yaml.MappingStartEvent)
            value = self._mapping(event, path, depth)
        if event.anchor is not None:
            self.anchors[event.anchor] = (value, self.nodes - before)
        return value

    def _aliased(self, event: yaml.AliasEvent, path: str) -> Value:
        # An anchor is known once its value is complete, so a value can never contain itself.
        if event.anchor not in self.anchors:
            self._refuse(path, f"refers to *{event.anchor}, which is not complete above", "Define it before it is used")
        value, nodes = self.anchors[event.anchor]
        self._count(nodes, path)
        return value

    def _list(self, event: yaml.SequenceStartEvent, path: str, depth: int) -> list[Value]:
        self._refuse_tag(event.tag, path)
        items: list[Value] = []
        while not isinstance(item := next(self.events), yaml.SequenceEndEvent):
            items.append(self._value(item, f"{path}[{len(items)}]", depth + 1))
        return items

    def _mapping(self, event: yaml.MappingStartEvent, path: str, depth: int) -> dict[str, Value]:
        self._refuse_tag(event.tag, path)
        members: dict[str, Value] = {}
        while not isinstance(item := next(self.events), yaml.MappingEndEvent):
            key = self._key(item, path)
            inner = joined(path, key)
            if key in members:
                self._refuse(inner, f"appears a second time, on line {_line(item)}", "Keep one")
            members[key] = self._value(next(self.events), inner, depth + 1)
        return members

    def _key(self, event: yaml.Event, path: str) -> str:
        line = _line(event)
        if not isinstance(event, yaml.ScalarEvent):
            self._refuse(path, f"has a key on line {line} that is not text", "Use a plain word as key")
        key = self._scalar(event, path)
        if key == "<<" and _is_plain(event):
            self._refuse(path, f"uses a merge key (<<) on line {line}", "Write the keys out")
        if not isinstance(key, str):
            self._refuse(path, f"has a key on line {line} that is not text", "Put the key in quotes")
        self._count(1, path)
        return key

    def _scalar(self, event: yaml.ScalarEvent, path: str) -> Value:
        self._refuse_tag(event.tag, path)
        text = event.value
        if _NEVER.search(text):
            self._refuse(path, "contains a NUL or half of a surrogate pair", "Write whole, visible characters")
        return self._plain(text, path) if _is_plain(event) else text

    def _plain(self, text: str, path: str) -> Value:
        if _NULL.fullmatch(text):
            return None
        if _BOOLEAN.fullmatch(text):
            return text.lower() == "true"
        if _INTEGER.fullmatch(text):
            if len(text.lstrip("+-0")) > INTEGER_DIGITS_MAX:
                self._refuse(path, f"is a number of more than {INTEGER_DIGITS_MAX} digits", "Use a smaller number")
            return int(text)
        if _FLOAT.fullmatch(text):
            number = float(text)
            if not math.isfinite(number):
                self._refuse(path, "is a number that is too large", "Use a smaller number")
            return number
        return text

    def _refuse_tag(self, tag: str | None, path: str) -> None:
        if tag is not None:
            self._refuse(path, "has a YAML tag (`!`)", "Remove the tag")

    def _count(self, nodes: int, path: str) -> None:
        self.nodes += nodes
        if self.nodes > NODES_MAX:
            self._refuse(path, f"takes the file over {NODES_MAX} values, aliases expanded", "Make it smaller")

    def _refuse(self, path: str, problem: str, fix: str) -> NoReturn:
        raise ConfigError(self.file, path, problem, fix)


def _line(event: yaml.Event) -> int:
    assert event.start_mark is not None
    return event.start_mark.line + 1


def _is_plain(event: yaml.ScalarEvent) -> bool:
    # The C parser says an empty style where the Python one says none.
    return not event.style
