"""The rules of a diagnosis, as data: which figures of one run show a constraint. Pure.

Owns the thresholds and the words of the evidence. Two rules may name one constraint: it shows in more than one way.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from bench.analysis.scores import BEHIND_NOTED, PREEMPTIONS_NOTED

Show = Literal["share", "ms", "number", "times", "per_s"]


class Constraint(StrEnum):
    SEQUENCE_LIMIT = "sequence_limit"
    KV_CACHE = "kv_cache"
    PREFILL_BUDGET = "prefill_budget"
    ADMISSION_TIGHT = "admission_tight"
    ADMISSION_OPEN = "admission_open"
    API_SERVER = "api_server"
    CLIENT = "client"
    DEVICE_IDLE = "device_idle"
    ENGINE_SPEED = "engine_speed"


@dataclass(frozen=True, slots=True)
class Test:
    """A figure, and between what it must lie. says: with {} where the figure stands.

    lacking: says, in its place, that too little was seen: where it does not hold that speaks against nothing.
    decisive: among what confirms; without it nothing is more than possible.
    """

    figure: str
    says: str
    show: Show = "share"
    at_least: float = float("-inf")
    at_most: float = float("inf")
    lacking: str = ""
    decisive: bool = False

    def holds(self, value: float) -> bool:
        return self.at_least <= value <= self.at_most


@dataclass(frozen=True, slots=True)
class Rule:
    """needs: all hold, or it is not this. unless: one that is known and holds, and it is not this. confirms: each adds
    to how sure it is, and is missing or against it where it does not hold. about: said where it is known, and weighs
    nothing. strength: the figure that findings are ordered by, a share of the time to first token or of the load.
    """

    constraint: Constraint
    needs: tuple[Test, ...]
    strength: str
    unless: tuple[Test, ...] = ()
    confirms: tuple[Test, ...] = ()
    about: tuple[Test, ...] = ()


_READINGS = Test(
    "readings",
    "{} readings of the engine",
    "number",
    20,
    lacking="only {} readings of the engine: a longer run says more",
)
_LIMIT = Test("limit_known", "max_num_seqs is {}", "number", at_least=1)
_ENGINE_WAITS = Test("waiting_share", "requests waited in the engine at {} of its readings", at_least=0.2)
_ENGINE_WAITS_AT_TIMES = Test("waiting_share", "requests waited in the engine at {} of its readings", at_least=0.1)
_GATEWAY_HOLDS = Test("queued_share", "the gateway held requests at {} of the readings", at_least=0.2)
_KV_ROOM = Test("kv_room_share", "the KV cache had room at {} of those", at_least=0.8)
_KV_SHORT = Test("kv_room_share", "the KV cache had room for the longest prompt in prefill at {} of those", at_most=0.5)
_AT_LIMIT = Test("at_limit_share", "as many sequences ran as may at {} of those", at_least=0.8)
_HELD_AT_LIMIT = Test("held_at_limit_share", "max_num_seqs ran in the engine at {} of those", at_least=0.8)
_IDLE_ROOM = Test(
    "idle_room_share",
    "at {} of those nobody waited in the engine, nothing was in prefill, and sequences and KV were free",
    at_least=0.5,
)
_HELD_KV_SHORT = Test("held_kv_room_share", "the engine's KV cache had room at {} of those", at_most=0.5)
_BEHIND = Test("behind_share", "{} of what was offered in the window was not answered in it", at_least=BEHIND_NOTED)
_PREEMPTED = Test("preemptions_of_requests", "which is {} of the requests", at_least=PREEMPTIONS_NOTED)
_ON_THE_WAY = Test("way_ms_of_ttft", "{} of the time to first token was spent in no queue", at_least=0.5)
_LATE_CLIENT = Test("client_ms_of_ttft", "{} of the time to first token was the client's", at_least=0.2)
_NO_PLATEAU = Test(
    "plateau_share", "at {} of the readings some waited in the engine and as many ran as ever did", at_most=0.5
)

RULES: tuple[Rule, ...] = (
    Rule(
        Constraint.SEQUENCE_LIMIT,
        needs=(
            _ENGINE_WAITS,
            _AT_LIMIT,
            _KV_ROOM,
            Test("engine_queue_ms_of_ttft", "the engine's queue was {} of the time to first token", at_least=0.1),
        ),
        confirms=(_LIMIT, _READINGS),
        strength="engine_queue_ms_of_ttft",
    ),
    Rule(
        Constraint.SEQUENCE_LIMIT,
        needs=(
            _GATEWAY_HOLDS,
            _HELD_AT_LIMIT,
            Test("held_kv_room_share", "the KV cache had room at {} of those", at_least=0.8),
            Test("gateway_ms_of_ttft", "the gateway's queue was {} of the time to first token", at_least=0.1),
        ),
        confirms=(_LIMIT, _READINGS),
        strength="gateway_ms_of_ttft",
    ),
    Rule(
        Constraint.KV_CACHE,
        needs=(
            _ENGINE_WAITS_AT_TIMES,
            _KV_SHORT,
            Test("engine_queue_ms_of_ttft", "the engine's queue was {} of the time to first token", at_least=0.1),
        ),
        confirms=(
            Test("kv_max", "the KV cache was {} full at most", at_least=0.9),
            _READINGS,
        ),
        strength="engine_queue_ms_of_ttft",
    ),
    Rule(
        Constraint.KV_CACHE,
        needs=(
            Test("preemptions", "{} preemptions: work was thrown away and done again", "number", at_least=1),
            _PREEMPTED,
            Test("kv_max", "the KV cache was {} full at most", at_least=0.9),
        ),
        confirms=(_READINGS,),
        strength="preemptions_of_requests",
    ),
    Rule(
        Constraint.KV_CACHE,
        needs=(
            _GATEWAY_HOLDS,
            _HELD_KV_SHORT,
            Test("gateway_ms_of_ttft", "the gateway's queue was {} of the time to first token", at_least=0.1),
        ),
        confirms=(Test("kv_max", "the KV cache was {} full at most", at_least=0.9), _READINGS),
        strength="gateway_ms_of_ttft",
    ),
    Rule(
        Constraint.PREFILL_BUDGET,
        needs=(
            Test("shorts_that_met_long", "{} of the short requests met a long prompt in prefill", at_least=0.05),
            Test("interference_times", "those had their first token {} as late as the others", "times", at_least=2),
            Test(
                "interference_ms", "which is {} more (medians, from when they reached the engine)", "ms", at_least=100
            ),
            Test("interference_of_ttft", "over all short requests {} of the time to first token", at_least=0.1),
        ),
        unless=(_AT_LIMIT, _KV_SHORT, _ON_THE_WAY),
        confirms=(
            Test("kv_max", "the KV cache was {} full at most", at_most=0.9),
            Test("running_of_limit", "at most {} of max_num_seqs ran", at_most=0.99),
            _READINGS,
        ),
        about=(
            Test("steps_of_long", "a long prompt fills {} steps of max_num_batched_tokens", "number"),
            Test("long_prefill_token_threshold", "long_prefill_token_threshold is {}", "number"),
        ),
        strength="interference_of_ttft",
    ),
    Rule(
        Constraint.ADMISSION_TIGHT,
        needs=(
            _GATEWAY_HOLDS,
            _IDLE_ROOM,
            Test("gateway_ms_of_ttft", "the gateway's queue was {} of the time to first token", at_least=0.2),
        ),
        confirms=(
            Test("running_of_limit", "at most {} of max_num_seqs ran", at_most=0.5, decisive=True),
            Test("kv_max", "the KV cache was {} full at most", at_most=0.8),
            _READINGS,
        ),
        strength="gateway_ms_of_ttft",
    ),
    Rule(
        Constraint.ADMISSION_TIGHT,
        needs=(
            _GATEWAY_HOLDS,
            Test("held_plateau_share", "at {} of those as many ran in the engine as ever did", at_least=0.8),
            Test("running_of_limit", "at most {} of max_num_seqs ran", at_most=0.5),
            Test("held_kv_room_share", "the KV cache had room at {} of those", at_least=0.8),
            Test("gateway_ms_of_ttft", "the gateway's queue was {} of the time to first token", at_least=0.2),
        ),
        confirms=(Test("prefilling_share", "prompts were in prefill at {} of the readings", at_most=0.5), _READINGS),
        strength="gateway_ms_of_ttft",
    ),
    Rule(
        Constraint.API_SERVER,
        needs=(
            Test("way_share", "at {} of the readings requests had been sent that were in no queue yet", at_least=0.3),
            Test("way_ms", "{} a request on average", "ms", at_least=50),
            Test("way_ms_of_ttft", "which is {} of the time to first token", at_least=0.3),
        ),
        # A client that stands still reads the ends late as well: what it has not read looks as if it were on its way.
        unless=(Test("way_steps", "{} the longest step", "times", at_most=1.5), _LATE_CLIENT),
        confirms=(
            Test("way_steps", "{} the longest step that requests saw", "times", at_least=3),
            _READINGS,
        ),
        strength="way_ms_of_ttft",
    ),
    Rule(
        Constraint.CLIENT,
        needs=(
            Test("client_ms", "requests were sent {} late on average", "ms", at_least=10),
            Test("client_ms_of_ttft", "which is {} of the time to first token", at_least=0.1),
        ),
        strength="client_ms_of_ttft",
    ),
    Rule(
        Constraint.DEVICE_IDLE,
        needs=(
            Test(
                "gpu_idle_while_waiting", "the GPU was idle for {} of the time in which requests waited", at_least=0.5
            ),
        ),
        confirms=(_READINGS,),
        strength="gpu_idle_while_waiting",
    ),
    Rule(
        Constraint.ENGINE_SPEED,
        needs=(
            _BEHIND,
            Test(
                "open_growth",
                "{} more requests were open in its last third than in the one before",
                "number",
                at_least=3,
            ),
        ),
        unless=(_AT_LIMIT, _HELD_AT_LIMIT, _KV_SHORT, _IDLE_ROOM, _PREEMPTED, _ON_THE_WAY, _LATE_CLIENT),
        confirms=(
            Test("prefilling_share", "prompts were in prefill at {} of the readings", at_least=0.9),
            Test("running_of_limit", "at most {} of max_num_seqs ran", at_most=0.99),
            _NO_PLATEAU,
            _READINGS,
        ),
        strength="behind_share",
    ),
    Rule(
        Constraint.ENGINE_SPEED,
        needs=(
            _BEHIND,
            Test("held_up_share", "requests waited, in the engine or before it, at {} of the readings", at_least=0.3),
            Test("prefilling_share", "prompts were in prefill at {} of the readings", at_least=0.9),
        ),
        unless=(
            _AT_LIMIT,
            _HELD_AT_LIMIT,
            _KV_SHORT,
            _HELD_KV_SHORT,
            _IDLE_ROOM,
            _PREEMPTED,
            _ON_THE_WAY,
            _LATE_CLIENT,
        ),
        confirms=(Test("running_of_limit", "at most {} of max_num_seqs ran", at_most=0.99), _NO_PLATEAU, _READINGS),
        strength="behind_share",
    ),
)

NO_ENGINE = "the engine was not read: run with --engine-url"
NO_LIMIT = "max_num_seqs is not in the record: give --max-num-seqs"
ABSENT: dict[str, str] = {
    "waiting_share": NO_ENGINE,
    "way_share": NO_ENGINE,
    "behind_share": NO_ENGINE,
    "readings": NO_ENGINE,
    "engine_queue_ms_of_ttft": "no request had a first token",
    "way_ms_of_ttft": "no request had a first token",
    "kv_max": "the engine does not say how full its KV cache is",
    "preemptions": "preemptions are unknown: the engine was not read before and after, or restarted",
    "limit_known": NO_LIMIT,
    "running_of_limit": NO_LIMIT,
    "way_steps": "no request saw a gap between tokens that a step could be told by",
    "interference_times": "too few short requests came both while a long prompt was in prefill and while none was",
    "gpu_idle_while_waiting": "GPU utilisation was not recorded (the extra gpu, on the engine's machine)",
}
"""Of figures that a record may lack: why, and how to have them."""
