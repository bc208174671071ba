"""Virtual time, and the engines that work in it: one heap of things to come, no waiting, no clock.

Owns the time and the engines' steps. Several gateways may stand before the same engines: what a step brings is told to
the one whose request it was. Knows no Admission.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from heapq import heappop, heappush

from bench.simulation.posts import Part, Post, Run
from bench.simulation.steps import Step
from bench.simulation.virtual_engine import VirtualEngine

START = 1_000_000.0


class EngineRoom:
    """posts: the engines by name. network_s: one way between them and any gateway. steps: of all of them.

    unfinished: requests that have yet to come or to end, of all gateways.
    """

    def __init__(
        self, engines: Mapping[str, VirtualEngine], *, batches_in_flight: int = 1, network_s: float = 0.001
    ) -> None:
        self.now = START
        self.posts = {name: Post(name, engine, batches_in_flight) for name, engine in engines.items()}
        self.network_s = network_s
        self.steps = 0
        self.unfinished = 0
        self._agenda: list[tuple[float, int, int, Callable[[], None]]] = []
        self._number = 0

    def at(self, when: float, what: Callable[[], None], rank: int = 2) -> None:
        """Note something to do; at one instant lower ranks go first."""
        self._number += 1
        heappush(self._agenda, (when, rank, self._number, what))

    def run(self) -> None:
        """Play until nothing is left to come."""
        agenda = self._agenda
        while agenda:
            self.now, _, _, what = heappop(agenda)
            what()

    def send(self, post: Post, part: Part) -> None:
        """Let a request go to an engine."""
        post.parts[part.request.id] = part
        self.at(self.now + self.network_s, partial(self._reach, post, post.epoch, part), rank=0)

    def take_back(self, post: Post, part: Part) -> None:
        """Abort what is at an engine; it works on it until the steps in flight end."""
        self._look_up(post)
        post.let_go(part.request.id)
        post.aborts.append(part.request.id)
        if not post.in_flight:
            post.cross_border()
        self.at(self.now, partial(self._work, post, post.epoch), rank=4)

    def _reach(self, post: Post, epoch: int, part: Part) -> None:
        if epoch == post.epoch and part.request.id in post.parts:  # else it was given up on the way
            self.add(post, part)

    def add(self, post: Post, part: Part) -> None:
        """Let an engine have a request of `post.parts` now."""
        if post.run is not None:
            self._look_up(post)
        post.unseen.append(part)
        post.engine.add(part.request)
        self._go_on(post)

    # ── steps ──

    def _go_on(self, post: Post) -> None:
        """Let an engine work, after all else that happens in this instant."""
        if not post.has_room:
            return  # whoever makes room has it go on
        if self._agenda and self._agenda[0][0] <= self.now:
            self.at(self.now, partial(self._work, post, post.epoch), rank=4)
        else:
            self._work(post, post.epoch)

    def _work(self, post: Post, epoch: int) -> None:
        """Schedule steps while the engine has work and room for a batch in flight."""
        while epoch == post.epoch and post.has_room and post.engine.busy:
            if post.aborts and not post.in_flight:
                post.cross_border()
            if steps := post.may_run():
                run = post.begin_run(self.now, steps)
                self.at(run.over_at, partial(self._end_run, post, run), rank=0)
                break
            step = post.engine.schedule()
            if step.is_empty:
                break
            self.steps += 1
            ends_at = max(self.now, post.free_at) + step.duration_s
            if post.unseen:
                post.see(step)
            post.in_flight.append((step, ends_at))
            self.at(ends_at, partial(self._end_step, post, epoch, ends_at), rank=0)

    def _end_run(self, post: Post, run: Run) -> None:
        if post.run is run:
            self._look_up(post)
            self._go_on(post)

    def _look_up(self, post: Post) -> None:
        """Look at an engine's steps one by one again."""
        if post.run is not None:
            self.steps += post.end_run(self.now)
            for _, ends_at in post.in_flight:
                self.at(ends_at, partial(self._end_step, post, post.epoch, ends_at), rank=0)

    def _end_step(self, post: Post, epoch: int, ends_at: float) -> None:
        if epoch != post.epoch or not post.in_flight or post.in_flight[0][1] != ends_at:
            return  # lost with its process, or taken into a run
        step, _ = post.in_flight.popleft()
        if post.aborts:
            post.cross_border()
        post.engine.end(step)
        if step.first_tokens or step.ended:
            self.at(self.now + self.network_s, partial(self._hear, post, epoch, step), rank=0)
        self._go_on(post)

    def _hear(self, post: Post, epoch: int, step: Step) -> None:
        """The gateways read what the step brought; of requests given up meanwhile they hear nothing."""
        if epoch != post.epoch:
            return
        for request_id in step.first_tokens:
            part = post.parts.get(request_id)
            if part is not None:
                part.sender.first_token(part)
        for request_id in step.ended:
            part = post.let_go(request_id)
            if part is not None:
                part.sender.ended(part)
