"""One watch for each engine: is it there, what does it say, does it obey priorities.

Owns the engine's health and the last that is known of it, and one background loop. Real requests report here what
happened to them; what changes is told to `changed` at once. A metrics page that does not come is only stale: it
never takes an engine out of service and never holds up a request.

One module, because health and what is known of an engine are moved by the same loop.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import structlog

from gateway.core.types import EngineLimits
from gateway.engines import proof, rank, reading
from gateway.engines.health import Health, State
from gateway.engines.reading import Load
from gateway.engines.target import (
    Answer,
    Carrier,
    EngineHttp,
    EngineNotAsked,
    EngineSilent,
    EngineUnreachable,
    Scheduling,
    Target,
)

LOOK_INTERVAL_S = 1.0
QUESTION_S_MAX = 5.0
GENERATION_S_MAX = 30.0
CARDS_INTERVAL_S = 30.0
PROOF_ATTEMPTS_MAX = 3
CRASH_PAUSE_S = 5.0
DOWN_TOLD_EVERY_S = 60.0
_NOTHING_SAID = frozenset({429, 502, 503, 504})  # by an engine that is full, or by whoever stands before it


@dataclass(slots=True)
class Known:
    """The last that an engine said. Times: seconds since the epoch. proofs_tried counts since its last start.

    judges_rank: whether it judges a request for a rank that it has not, and does not run it; None: not asked yet.
    started_at: the last start that it told of, None where it never told; start_told_at: when it did last.
    """

    version: str | None = None
    cards: tuple[Mapping[str, Any], ...] = ()
    cards_at: float = float("-inf")
    load: Load = field(default_factory=Load)
    load_at: float | None = None
    started_at: float | None = None
    start_told_at: float = float("-inf")
    restarts: int = 0
    priority_proved: bool = False
    judges_rank: bool | None = None
    proofs_tried: int = 0
    problem: str | None = None


class EngineWatch:
    """Watches one engine. changed: called after every change of health or of what is known.

    dispatched_at: when a real request went there last. make_room: called then, before it goes.
    """

    def __init__(
        self,
        target: Target,
        http: EngineHttp,
        now: Callable[[], float],
        changed: Callable[[EngineWatch], None],
        pause: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self.target = target
        self.known = Known()
        self.health = Health()
        self.dispatched_at = float("-inf")
        self.make_room: Callable[[], None] = lambda: None
        self._http = http
        self._now = now
        self._changed = changed
        self._pause = pause
        self._log = structlog.get_logger().bind(engine=target.name)
        self._down_told_at = float("-inf")

    @property
    def limits(self) -> EngineLimits:
        """The limits in force: as stated, and where the KV cache's size is not stated, as the engine says."""
        stated, said = self.target.limits, self.known.load
        return replace(
            stated,
            kv_tokens=said.kv_tokens if stated.kv_tokens is None else stated.kv_tokens,
            kv_block_tokens=said.kv_block_tokens or stated.kv_block_tokens,
            prefix_caching=said.prefix_caching,
        )

    @property
    def priority_effective(self) -> bool:
        """Whether a priority is to be sent: the engine obeys it, as stated or as proved."""
        return self.target.scheduling is Scheduling.PRIORITY or self.known.priority_proved

    @property
    def priority_in_header(self) -> bool:
        if self.target.carrier is Carrier.AUTO:
            return reading.reads_priority_header(self.known.version)
        return self.target.carrier is Carrier.HEADER

    # ── what real requests report ──

    def dispatched(self) -> None:
        """A real request goes to the engine now."""
        self.dispatched_at = self._now()
        self.make_room()

    def answered(self) -> None:
        self.health.answered()

    def generated(self) -> None:
        self.health.generated()

    def failed(self) -> None:
        self.health.failed()

    def refused(self) -> None:
        self._move(self.health.refused)

    def silent(self) -> None:
        self._move(self.health.silent)

    def leaving(self) -> None:
        self._move(self.health.leaving)

    # ── the watch itself ──

    async def run(self) -> None:
        """Look again and again until cancelled; a look that crashes is told of and does not end the watch."""
        while True:
            pause_s = LOOK_INTERVAL_S
            try:
                await self.look()
            except Exception:  # noqa: BLE001 - told of, and the next look may fare better
                self._log.exception("watch_crashed", again_in_s=CRASH_PAUSE_S)
                pause_s = CRASH_PAUSE_S
            await self._pause(pause_s)

    async def look(self) -> None:
        """Look once: read an engine that is up, try to bring back one that is not."""
        why = None
        try:
            if self.health.is_up:
                await self._keep_up_to_date()
            else:
                await self._bring_back()
        except EngineUnreachable as error:
            self.known.problem = None
            why = str(error)
            self.refused()
        except EngineSilent as error:
            # Slow, not dead: what happens to real requests decides.
            why = str(error)
        if not self.health.is_up:
            self._tell_down(why or self.known.problem)

    async def _bring_back(self) -> None:
        """Bring the engine into service. Its models decide, and a token where it must generate; nothing else does."""
        if not await self._learn_cards():
            return
        if self.health.must_generate and not await self._computes():
            if self.health.state is not State.LEAVING:  # an engine that shuts down is as it should be
                self._complain("it lists its models, but generates nothing")
            return
        await self._learn_version()
        asked_at = self._now()
        await self._read_load()
        if self.health.state in (State.REFUSING, State.LEAVING, State.STRANGE) and self.known.start_told_at < asked_at:
            # It may be another process, and does not say.
            self._forget_proof()
        await self._try_proof()
        self.known.problem = None
        self._move(self.health.recovered)

    async def _keep_up_to_date(self) -> None:
        if self.health.is_suspected:
            if not await self._computes():
                self._move(self.health.convicted)
                return
            self.health.generated()
        known_at = self.known.load_at
        is_restarted = await self._read_load()
        if self.known.load_at != known_at:
            self._changed(self)
        if is_restarted:
            if self.target.scheduling is Scheduling.PROBE:
                # It is held out of service for its new proof: no caller waits behind the proof's prompts.
                self._move(self.health.restarted)
                await self._bring_back()
                return
            await self._learn_version()
        elif self._now() < self.known.cards_at + CARDS_INTERVAL_S:
            return
        if await self._learn_cards():
            self.known.problem = None
        self._changed(self)

    async def _learn_cards(self) -> bool:
        answer = await self._http.get(self.target, "/v1/models", timeout_s=QUESTION_S_MAX)
        if answer.status in (401, 403):
            self._complain(f"it refuses the gateway's key ({answer.status}): check api_key_env")
            self._move(self.health.key_refused)
            return False
        cards = reading.models(answer.body) if answer.status == 200 else None
        if cards is None:
            self._complain(f"GET /v1/models: status {answer.status}, no list of models")
            return False
        if self._serves_others(cards):
            wanted, listed = ", ".join(self.target.models), ", ".join(str(card["id"]) for card in cards)
            self._complain(f"it serves none of its pool's models ({wanted}); it has {listed}")
            self._move(self.health.serves_others)
            return False
        self.known.cards, self.known.cards_at = cards, self._now()
        return True

    def _serves_others(self, cards: Sequence[Mapping[str, Any]]) -> bool:
        """Whether it is another's engine: it would answer 404 to every caller, who is told that the model exists."""
        return bool(cards and self.target.models) and not any(card["id"] in self.target.models for card in cards)

    async def _learn_version(self) -> None:
        body = await self._said_at("/version")
        self.known.version = None if body is None else reading.version(body)

    async def _read_load(self) -> bool:
        """Read the metrics, if they come; True where they tell of a restart since the last that did."""
        for path in (reading.FILTERED_METRICS_PATH, reading.METRICS_PATH):
            body = await self._said_at(path)
            load = None if body is None else reading.load(body)
            if load is not None:
                self.known.load, self.known.load_at = load, self._now()
                return self._note_start(load.started_at)
        return False

    def _note_start(self, started_at: float | None) -> bool:
        if started_at is None:
            return False
        known_start, self.known.started_at, self.known.start_told_at = self.known.started_at, started_at, self._now()
        if known_start in (None, started_at):
            return False
        self.known.restarts += 1
        self._forget_proof()
        self._log.warning("engine_restarted")
        return True

    def _forget_proof(self) -> None:
        self.known.priority_proved, self.known.proofs_tried = False, 0
        self.known.judges_rank = None

    async def _said_at(self, path: str) -> bytes | None:
        """Ask what is good to know and decides nothing: None where no answer comes, or none of use."""
        try:
            answer = await self._http.get(self.target, path, timeout_s=QUESTION_S_MAX)
        except EngineSilent:
            return None
        return answer.body if answer.status == 200 else None

    async def _try_proof(self) -> None:
        """Prove the engine's order, while it gets no requests from here and is idle."""
        if self.target.scheduling is not Scheduling.PROBE or self.known.priority_proved or not self.known.cards:
            return
        if not self.known.load.is_idle:
            self._log.warning("priority_not_probed", why="not known to be idle while it came into service")
            return
        model = self.known.cards[0]["id"]
        load = proof.plan_load(self.limits, reading.context_tokens(self.known.cards, model))
        if load is None:
            self._log.warning("priority_not_probed", why=proof.why_not_planned(self.limits))
            return
        while not self.known.priority_proved and self.known.proofs_tried < PROOF_ATTEMPTS_MAX:
            self.known.proofs_tried += 1
            self._log.info("priority_probe_started", attempt=self.known.proofs_tried, rounds=proof.ROUNDS)
            try:
                proved = await proof.obeys_priority(self._complete, load, model, os.urandom(16), asyncio.sleep)
            except TimeoutError:
                self._log.warning("priority_not_probed", why="a round took too long")
                return
            self.known.priority_proved = proved
            self._log.info("priority_probed", proved=proved, attempt=self.known.proofs_tried)

    async def generate(self, body: dict[str, Any], priority: int | None, *, timeout_s: float) -> Answer:
        """Ask for a completion of the gateway's own. Raises EngineUnreachable and EngineSilent."""
        headers = {}
        if priority is not None and self.priority_in_header:
            headers["X-Vllm-Priority"] = str(priority)
        elif priority is not None:
            body = {**body, "priority": priority}
        return await self._http.post_json(self.target, "/v1/completions", body, timeout_s=timeout_s, headers=headers)

    async def judges_rank(self) -> bool:
        """Ask, once since its start, whether a request for a rank that it has not is judged and not run (`rank`)."""
        if self.known.judges_rank is None:
            body, headers = self._one_token(), dict([rank.HEADER])
            try:
                answer = await self._http.post_json(
                    self.target, "/v1/completions", body, timeout_s=QUESTION_S_MAX, headers=headers
                )
            except (EngineUnreachable, EngineSilent):
                return False
            judges_rank = rank.is_refused_alone(answer.body)
            if not judges_rank and answer.status in _NOTHING_SAID:
                return False
            self.known.judges_rank = judges_rank
        return self.known.judges_rank

    async def _computes(self) -> bool:
        """Whether it computes for the gateway: a token, or where it generates none an embedding.

        An engine without either route, as one for scores alone, is believed: only its callers can ask it anything.
        Raises EngineNotAsked.
        """
        question = self._one_token()
        embedding = {"model": question["model"], "input": question["prompt"]}
        for path, body in (("/v1/completions", question), ("/v1/embeddings", embedding)):
            try:
                answer = await self._http.post_json(self.target, path, body, timeout_s=GENERATION_S_MAX)
            except EngineNotAsked:
                raise
            except (EngineUnreachable, EngineSilent):
                return False
            if answer.status != 404:
                return answer.status == 200
        return True

    async def _complete(self, body: dict[str, Any], priority: int | None) -> bool:
        try:
            answer = await self.generate(body, priority, timeout_s=GENERATION_S_MAX)
        except (EngineUnreachable, EngineSilent):
            return False
        return answer.status == 200

    def _one_token(self) -> dict[str, Any]:
        model = self.known.cards[0]["id"] if self.known.cards else None
        # Ids need no tokenizer. A leaving engine would still take them: it is text that it refuses.
        prompt = "." if self.health.state is State.LEAVING else [64]
        return {"model": model, "prompt": prompt, "max_tokens": 1, "stream": False}

    def _complain(self, problem: str) -> None:
        if problem != self.known.problem:
            self._log.error("engine_not_usable", problem=problem)
            self._down_told_at = self._now()
        self.known.problem = problem

    def _tell_down(self, why: str | None) -> None:
        """Say that the engine is out of service, again and again while it is; nothing where it was just said."""
        now = self._now()
        if now >= self._down_told_at + DOWN_TOLD_EVERY_S:
            self._down_told_at = now
            self._log.warning("engine_state", state=self.health.state.value, url=self.target.url, why=why)

    def _move(self, step: Callable[[], None]) -> None:
        before = self.health.state
        step()
        if self.health.state is not before:
            tell = self._log.info if self.health.is_up else self._log.warning
            tell("engine_state", state=self.health.state.value, was=before.value)
            self._down_told_at = self._now()
            self._changed(self)
