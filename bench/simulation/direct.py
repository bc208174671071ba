"""Callers who send to engines themselves, in virtual time: no gateway, and so nothing of one.

Owns who sends when, and what became of each. Where there are several engines each request goes to one at random, as a
balancer that knows nothing sends it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from random import Random

from bench.simulation.engine_room import EngineRoom
from bench.simulation.posts import Answer, Caller, Part, Post, Sender
from bench.simulation.steps import EngineRequest
from gateway.core.types import Outcome


class DirectCallers(Sender):
    """Send callers to the engines of a room. `answers`: in order of arrival. first_number: of its requests."""

    def __init__(self, room: EngineRoom, *, seed: int = 0, first_number: int = 1) -> None:
        self.room = room
        self.answers: list[Answer] = []
        self._posts = list(room.posts.values())
        self._random = Random(seed)
        self._number = first_number

    def expect(self, callers: Sequence[Caller]) -> None:
        """Let callers come, each at its time from now on."""
        self.room.unfinished += len(callers)
        self._let_come(iter(sorted(callers, key=lambda caller: caller.at_s)), self.room.now)

    def _let_come(self, callers: Iterator[Caller], began: float) -> None:
        caller = next(callers, None)
        if caller is not None:
            room = self.room
            room.at(began + caller.at_s + room.network_s, partial(self._reach, caller, callers, began), rank=0)

    def _reach(self, caller: Caller, callers: Iterator[Caller], began: float) -> None:
        self._let_come(callers, began)
        room, posts = self.room, self._posts
        post = posts[0] if len(posts) == 1 else self._random.choice(posts)
        answer = Answer(caller, post.name)
        self.answers.append(answer)
        leaves_after_s = caller.leaves_after_s
        if leaves_after_s is not None and leaves_after_s <= room.network_s:
            self._end(answer, Outcome.CLIENT_GONE, began + caller.at_s + leaves_after_s)
            return
        number = self._number
        self._number += 1
        priority = 0 if caller.priority is None else caller.priority
        part = Part(self, answer, EngineRequest(number, caller.prompt_tokens, caller.output_tokens, priority))
        post.parts[number] = part
        if leaves_after_s is not None:
            room.at(began + caller.at_s + leaves_after_s, partial(self._leave, post, part), rank=1)
        room.add(post, part)

    def _leave(self, post: Post, part: Part) -> None:
        if part.fate.outcome is None:
            self.room.take_back(post, part)
            self._end(part.fate, Outcome.CLIENT_GONE, self.room.now)

    def first_token(self, part: Part) -> None:
        """Hear of a request's first token."""
        part.fate.first_token_at = self.room.now

    def ended(self, part: Part) -> None:
        """Hear that a request has its last token."""
        self._end(part.fate, Outcome.COMPLETED, self.room.now)

    def _end(self, answer: Answer, outcome: Outcome, at: float) -> None:
        answer.outcome, answer.ended_at = outcome, at
        self.room.unfinished -= 1
