"""The figures of one run that rules are about, by name. Pure; a figure that was not measured has no key.

Times in a queue follow from readings by Little's law: how many were there on average, over how many came a second.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import inf
from statistics import fmean, median

from bench.analysis.scores import answered_share
from bench.diagnosis.facts import EngineFacts
from bench.diagnosis.moments import Moment, Spans, has_gateway, held_ms, long_classes, moments, reached_ms
from bench.records.request import Outcome, Phase, RequestRecord
from bench.records.stored import StoredRun

READINGS_MIN = 5
PAIRS_MIN = 5  # short requests with a long prompt in prefill, and without
PARTS = ("client_ms", "gateway_ms", "way_ms", "engine_queue_ms")
Figures = dict[str, float]


def figures(run: StoredRun, facts: EngineFacts) -> Figures:
    seen = moments(run, facts)
    planned = [record for record in run.records if record.phase is Phase.WINDOW]
    found = {"readings": float(len(seen)), **_of_requests(planned, run), **_client(planned)}
    if len(seen) >= READINGS_MIN:
        found |= {**_of_engine(run, seen), **_room(seen, facts), **_times(planned, seen, run.window.seconds)}
        found |= _steps(found, planned)
    return found | _of_ttft(found) | _interference(run.records, planned) | _long_prompts(planned, facts)


def _of_requests(planned: Sequence[RequestRecord], run: StoredRun) -> Figures:
    found: Figures = {}
    if planned:
        answers = len(run.window.answers(run.records))
        found["offered_per_s"] = len(planned) / run.window.seconds
        found["completed_per_s"] = answers / run.window.seconds
    answered = answered_share([(run.window, run.records)])
    if answered is not None:
        found["behind_share"] = max(0.0, 1 - answered)
    judged = [each for each in (run.measurements.get("classes") or {}).values() if "good_share" in each]
    if judged:
        found["good_share"] = min(float(each["good_share"]) for each in judged)
    found |= _mean("ttft_ms", (record.ttft_ms for record in planned))
    return found


def _client(planned: Sequence[RequestRecord]) -> Figures:
    """gateway_ms: of whoever had a first token, since it is a part of the mean time to that."""
    found = _mean("client_ms", (record.lag_ms for record in planned))
    if has_gateway(planned):
        found |= _mean("gateway_ms", (held_ms(record) for record in planned if record.first_token_ms is not None))
    return found


def _of_engine(run: StoredRun, seen: Sequence[Moment]) -> Figures:
    found: Figures = {
        "running_max": max(each.running for each in seen),
        "running_mean": fmean(each.running for each in seen),
        "waiting_mean": fmean(each.waiting for each in seen),
        "waiting_share": _share(seen, lambda each: each.waiting > 0),
        "held_up_share": _share(seen, lambda each: each.held_up),
        "prefilling_mean": fmean(each.prefilling for each in seen),
        "prefilling_share": _share(seen, lambda each: each.prefilling > 0),
        "open_growth": _growth([each.running + each.waiting + each.between + (each.queued or 0) for each in seen]),
    }
    usage = [each.kv for each in seen if each.kv is not None]
    if usage:
        found |= {"kv_max": max(usage), "kv_mean": fmean(usage)}
    preemptions = (run.measurements.get("engine") or {}).get("delta", {}).get("preemptions")
    if isinstance(preemptions, int | float) and run.records:
        found["preemptions"] = float(preemptions)
        # Counted over the whole run, as the requests are here.
        found["preemptions_of_requests"] = min(1.0, preemptions / len(run.records))
    busy = [each.gpu_busy for each in seen if each.gpu_busy is not None and each.held_up]
    if busy:
        found["gpu_idle_while_waiting"] = 1 - fmean(busy)
    return found


def _room(seen: Sequence[Moment], facts: EngineFacts) -> Figures:
    """What the engine had left while requests waited in it, and while the gateway held some."""
    limit = facts.max_num_seqs
    found: Figures = {}
    most = max(each.running for each in seen)
    found["plateau_share"] = _share(seen, lambda each: each.waiting > 0 and each.running >= most)
    waiting = [each for each in seen if each.waiting]
    if waiting:
        found["at_limit_share"] = _share(waiting, lambda each: _at_limit(each, limit, most))
        found["kv_room_share"] = _share(waiting, lambda each: each.kv_room is not False)
    if limit is not None:
        found["limit_known"] = float(limit)
        found["running_of_limit"] = most / limit
    held = [each for each in seen if each.queued]
    if any(each.queued is not None for each in seen):
        found["queued_share"] = len(held) / len(seen)
        found["queued_mean"] = fmean(each.queued or 0 for each in seen)
    if held:
        found["held_plateau_share"] = _share(held, lambda each: each.running >= most - 1)
        found["idle_room_share"] = _share(held, lambda each: _has_room(each, limit))
        if limit is not None:
            found["held_at_limit_share"] = _share(held, lambda each: each.running >= limit)
        found["held_kv_room_share"] = _share(held, lambda each: each.kv_room is not False)
    return found


def _at_limit(each: Moment, limit: int | None, most: float) -> bool:
    """Where nobody says the limit: as many run as ever did, and none of them is in prefill, so that tokens of the
    step are not what those who wait lack.
    """
    in_prefill = each.prefilling - each.between - each.waiting
    return each.running >= most and in_prefill <= 0 if limit is None else each.running >= limit


def _has_room(each: Moment, limit: int | None) -> bool:
    """Nobody waits there, nothing is in prefill, and neither sequences nor KV are at an end."""
    seats = limit is None or each.running < limit
    return seats and not each.waiting and not each.prefilling and each.kv_room is not False


def _times(planned: Sequence[RequestRecord], seen: Sequence[Moment], window_s: float) -> Figures:
    turned_away = (Outcome.EXPIRED, Outcome.REFUSED, Outcome.UNSENT)
    let_go = sum(record.outcome not in turned_away for record in planned)
    if not let_go:
        return {}
    per_ms = let_go / (window_s * 1000)
    return {
        "way_ms": fmean(each.between for each in seen) / per_ms,
        "way_share": _share(seen, lambda each: each.between >= 1),
        "engine_queue_ms": fmean(each.waiting for each in seen) / per_ms,
    }


def _steps(found: Figures, planned: Sequence[RequestRecord]) -> Figures:
    """The engine's own numbers are a step old, and what came meanwhile looks as if it were still on its way."""
    longest = [record.longest_stall_ms for record in planned if record.longest_stall_ms]
    return {"way_steps": found["way_ms"] / median(longest)} if longest and "way_ms" in found else {}


def _of_ttft(found: Figures) -> Figures:
    whole_ms = found.get("ttft_ms")
    return {f"{name}_of_ttft": min(1.0, found[name] / whole_ms) for name in PARTS if name in found} if whole_ms else {}


def _interference(records: Sequence[RequestRecord], planned: Sequence[RequestRecord]) -> Figures:
    """The first tokens of short requests from when they reached the engine: those that met a long prompt in prefill
    there, and those that met none.
    """
    longs, gateway = long_classes(records), has_gateway(records)
    if not longs:
        return {}
    in_prefill = Spans(
        (reached, _until(record))
        for record in records
        if record.class_name in longs and (reached := reached_ms(record, gateway=gateway)) is not None
    )
    met: list[float] = []
    free: list[float] = []
    whole: list[float] = []
    for record in planned:
        reached = reached_ms(record, gateway=gateway)
        if record.class_name in longs or record.first_token_ms is None or reached is None:
            continue
        whole.append(record.first_token_ms - record.planned_ms)
        (met if in_prefill.open_at(reached) else free).append(record.first_token_ms - reached)
    found: Figures = {}
    if whole:
        found["shorts_that_met_long"] = len(met) / len(whole)
    if len(met) >= PAIRS_MIN and len(free) >= PAIRS_MIN:
        with_ms, without_ms = median(met), median(free)
        found |= {"short_with_long_ms": with_ms, "short_without_long_ms": without_ms}
        found["interference_ms"] = with_ms - without_ms
        found["interference_times"] = with_ms / without_ms if without_ms else inf
        found["interference_of_ttft"] = min(1.0, found["shorts_that_met_long"] * (with_ms - without_ms) / fmean(whole))
    return found


def _long_prompts(planned: Sequence[RequestRecord], facts: EngineFacts) -> Figures:
    found: Figures = {}
    if facts.threshold is not None:
        found["long_prefill_token_threshold"] = float(facts.threshold)
    longs = long_classes(planned)
    lengths = [record.prompt_tokens_planned for record in planned if record.class_name in longs]
    if lengths and facts.step_tokens is not None:
        found["steps_of_long"] = median(lengths) / facts.step_tokens
    return found


def _until(record: RequestRecord) -> float:
    ends = [each for each in (record.first_token_ms, record.ended_ms) if each is not None]
    return min(ends, default=inf)


def _growth(values: Sequence[float]) -> float:
    """By how many more there are on average in the last third than in the one before: the first fills the engine."""
    third = max(1, len(values) // 3)
    return fmean(values[-third:]) - fmean(values[-2 * third : -third])


def _share(seen: Sequence[Moment], holds: Callable[[Moment], bool]) -> float:
    return sum(map(holds, seen)) / len(seen)


def _mean(name: str, values: Iterable[float | None]) -> Figures:
    known = [value for value in values if value is not None]
    return {name: fmean(known)} if known else {}
