"""The last minutes of a running gateway, as a terminal can show them: what `/api/history` of the ops port keeps.

Owns what it was told, and asks only for what is new of it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from math import ceil
from typing import Any

from gateway.cli import ops_client

COURSE_CHARS = 15
_LEVELS = " ▁▂▃▄▅▆▇█"
_HIGHEST = len(_LEVELS) - 1
_MEMBERS = {
    "outcomes": ("outcome",),
    "refusals": ("reason",),
    "oldest_age_s": ("service_class", "length_class", "pool"),
}


class Recent:
    """One gateway's. What has a name: the value of each bucket by the time at which it begins, class by class."""

    def __init__(self) -> None:
        self._forget()

    def _forget(self) -> None:
        self._values: dict[tuple[str, ...], dict[str, dict[float, float]]] = defaultdict(lambda: defaultdict(dict))
        self._began_at: float | None = None
        self._last_at, self._bucket_s, self._buckets = 0.0, 1.0, 1

    def ask(self, url: str) -> None:
        """Ask for what is new. Raises NotTheOpsPort."""
        said = self._asked(url)
        if self._began_at not in {None, said["began_at"]}:  # it was started anew
            self._forget()
            said = self._asked(url)
        self.take(said)

    def _asked(self, url: str) -> Any:
        status, said = ops_client.get(url, f"/api/history?since={self._last_at:.0f}")
        if status != 200:
            raise ops_client.NotTheOpsPort
        return said

    def take(self, said: Mapping[str, Any]) -> None:
        """Take in one answer."""
        self._began_at, self._last_at = said["began_at"], said["last_at"]
        self._bucket_s, self._buckets = said["bucket_s"], said["buckets"]
        for kind, members in _MEMBERS.items():
            for each in said[kind]:
                name = (kind, *(each[member] for member in members))
                self._values[name][each["service_class"]].update(each["values"])
        oldest = self._last_at - self._bucket_s * (self._buckets - 1)
        for by_class in self._values.values():
            for values in by_class.values():
                for at in [at for at in values if at < oldest]:
                    del values[at]

    def total(self, *name: str) -> int:
        """Return the sum of what is kept. name: the kind and what it is of."""
        return int(sum(sum(values.values()) for values in self._values.get(name, {}).values()))

    def course(self, *name: str, top: float | None = None) -> str:
        """Draw it, oldest first, each character the most of as many buckets. top: the full height."""
        heights = [0.0] * COURSE_CHARS
        for values in self._values.get(name, {}).values():
            for at, value in values.items():
                place = COURSE_CHARS - 1 - int((self._last_at - at) / self._bucket_s * COURSE_CHARS / self._buckets)
                heights[place] = max(heights[place], value)
        full = max([*heights, top or 0.0]) or 1.0
        return "".join(_LEVELS[ceil(_HIGHEST * height / full)] for height in heights)
