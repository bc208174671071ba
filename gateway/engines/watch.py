"""One watch for each engine: is it there, what does it say, does it obey priorities.

Owns the engine's health and the last that is known of it, and one background loop. Real requests report here what
happened to them; what changes is told to `changed` at once. A metrics page that does not come is only stale: it
never takes an engine out of service and never holds up a request.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import structlog

from gateway.engines import proof, reading
from gateway.engines.health import Health, State
from gateway.engines.reading import Load
from gateway.engines.target import Carrier, EngineHttp, EngineSilent, EngineUnreachable, Scheduling, Target

LOOK_INTERVAL_S = 1.0
QUESTION_S_MAX = 5.0
GENERATION_S_MAX = 30.0
CARDS_INTERVAL_S = 30.0
PROOF_ATTEMPTS_MAX = 3


@dataclass(slots=True)
class Known:
    """The last that an engine said. Times: seconds since the epoch. proofs_tried counts since its last start."""

    version: str | None = None
    cards: tuple[Mapping[str, Any], ...] = ()
    cards_at: float = float("-inf")
    load: Load = field(default_factory=Load)
    load_at: float | None = None
    restarts: int = 0
    priority_proved: bool = False
    proofs_tried: int = 0
    problem: str | None = None


class EngineWatch:
    """Watches one engine. changed: called after every change of health or of what is known."""

    def __init__(
        self, target: Target, http: EngineHttp, now: Callable[[], float], changed: Callable[[EngineWatch], None]
    ) -> None:
        self.target = target
        self.known = Known()
        self.health = Health()
        self._http = http
        self._now = now
        self._changed = changed
        self._log = structlog.get_logger().bind(engine=target.name)

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

    def answered(self) -> None:
        self.health.answered()

    def refused(self) -> None:
        self._move(self.health.refused)

    def silent(self) -> None:
        self._move(self.health.silent)

    # ── the watch itself ──

    async def run(self) -> None:
        """Look again and again until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(LOOK_INTERVAL_S)

    async def look(self) -> None:
        """Look once: read an engine that is up, try to bring back one that is not."""
        try:
            if self.health.is_up:
                await self._keep_up_to_date()
            else:
                await self._bring_back()
        except EngineUnreachable:
            self.refused()
        except EngineSilent:
            # Slow, not dead: what happens to real requests decides.
            return

    async def _bring_back(self) -> None:
        if not await self._learn_cards():
            return
        if self.health.state is State.SILENT and not await self._complete(self._one_token(), None):
            return
        await self._learn_version()
        await self._read_load()
        await self._try_proof()
        self.known.problem = None
        self._move(self.health.recovered)

    async def _keep_up_to_date(self) -> None:
        started_at = self.known.load.started_at
        await self._read_load()
        if started_at is not None and self.known.load.started_at not in (None, started_at):
            self.known.restarts += 1
            self.known.priority_proved, self.known.proofs_tried = False, 0
            self._log.warning("engine_restarted")
            await self._learn_version()
            await self._learn_cards()
            self._changed(self)
        elif self._now() >= self.known.cards_at + CARDS_INTERVAL_S:
            await self._learn_cards()
            self._changed(self)
        if self.target.scheduling is Scheduling.PROBE and not self.known.priority_proved:
            await self._try_proof()

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
        self.known.cards, self.known.cards_at = cards, self._now()
        return True

    async def _learn_version(self) -> None:
        answer = await self._http.get(self.target, "/version", timeout_s=QUESTION_S_MAX)
        self.known.version = reading.version(answer.body) if answer.status == 200 else None

    async def _read_load(self) -> None:
        for path in (reading.FILTERED_METRICS_PATH, reading.METRICS_PATH):
            answer = await self._http.get(self.target, path, timeout_s=QUESTION_S_MAX)
            load = reading.load(answer.body) if answer.status == 200 else None
            if load is not None:
                self.known.load, self.known.load_at = load, self._now()
                return

    async def _try_proof(self) -> None:
        if self.target.scheduling is not Scheduling.PROBE or self.known.priority_proved:
            return
        if self.known.proofs_tried >= PROOF_ATTEMPTS_MAX or not self.known.load.is_idle or not self.known.cards:
            return
        self.known.proofs_tried += 1
        model = self.known.cards[0]["id"]
        load = proof.plan_load(self.target.limits, reading.context_tokens(self.known.cards, model))
        if load is None:
            self._log.warning("priority_not_probed", why="no round fits the model's context")
            return
        try:
            proved = await proof.obeys_priority(self._complete, load, model, os.urandom(16), asyncio.sleep)
        except TimeoutError:
            proved = False
        self.known.priority_proved = proved
        self._log.info("priority_probed", proved=proved, attempt=self.known.proofs_tried)
        self._changed(self)

    async def _complete(self, body: dict[str, Any], priority: int | None) -> bool:
        headers = {}
        if priority is not None and self.priority_in_header:
            headers["X-Vllm-Priority"] = str(priority)
        elif priority is not None:
            body = {**body, "priority": priority}
        try:
            answer = await self._http.post_json(
                self.target, "/v1/completions", body, timeout_s=GENERATION_S_MAX, headers=headers
            )
        except (EngineUnreachable, EngineSilent):
            return False
        return answer.status == 200

    def _one_token(self) -> dict[str, Any]:
        model = self.known.cards[0]["id"] if self.known.cards else None
        return {"model": model, "prompt": [64], "max_tokens": 1, "stream": False}

    def _complain(self, problem: str) -> None:
        if problem != self.known.problem:
            self._log.error("engine_not_usable", problem=problem)
        self.known.problem = problem

    def _move(self, step: Callable[[], None]) -> None:
        before = self.health.state
        step()
        if self.health.state is not before:
            self._log.warning("engine_state", state=self.health.state.value, was=before.value)
            self._changed(self)
