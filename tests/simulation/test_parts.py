"""Long prompts in parts, before engines that keep their prefixes as vLLM does: what a plan promises holds under adversaries.

WatchedParts asserts at every event that one part at most is at an engine, that none is of a request the engine would
refuse or that has ended, and that nothing is held longer than it may; VirtualPool that charges and budgets are exact.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from random import Random
from typing import Any

import pytest
from scenarios import (
    BATCHED_TOKENS,
    CPU,
    FAST,
    LONG,
    OUTPUT_TOKENS,
    SEQUENCES,
    SHORT,
    SLOTS,
    an_unbounded_class,
    arrivals,
    capacity_per_s,
    shorts_only,
)
from virtual_pool import START, Caller, Fate, VirtualPool

from bench.simulation.steps import EngineFlags, StepTime
from bench.simulation.virtual_engine import VirtualEngine
from gateway.core.plan import Feedback, LongPrefill, LongPrefillMode, Plan
from gateway.core.slices import slice_end
from gateway.core.steptime import PrefillSample, StepModel
from gateway.core.ticket import Dispatched, DividingChanged, Proceed, Recalled, SliceEnded, SliceResult
from gateway.core.types import FallbackReason, LengthClass, Outcome
from gateway.testing.builders import a_plan, an_admission, an_engine

SLICED, RECALLED = LongPrefillMode.SLICED, LongPrefillMode.RECALLED
WAYS = pytest.mark.parametrize("mode", LongPrefillMode)
HOLD_S = 0.8
BLOCK = EngineFlags().block_tokens
LARGE_KV = 65_536
NO_END_S = 1e6


def plan_of(way: LongPrefill | None, *, longs: int = 1) -> Plan:
    """Return two classes that wait as long as they must: what is claimed is about parts, not about deadlines."""
    classes = (an_unbounded_class("interactive", weight=16, wait_s_max=NO_END_S),)
    classes += (replace(an_unbounded_class("batch", wait_s_max=NO_END_S), rank=1),)
    return a_plan(*classes, admission=an_admission(long_prefills_max=longs, slots=SLOTS, long_prefill=way))


def way_of(mode: LongPrefillMode, *, slice_s: float = 0.3, hold_max_s: float | None = HOLD_S) -> LongPrefill:
    return LongPrefill(mode, slice_s=slice_s, hold_max_s=hold_max_s, recalls_max=8)


class WatchedParts(VirtualPool):
    """held_s: every time that a prompt was put aside. went_at: when parts went.

    changes: what Admission said of the engine's cache.
    """

    def __init__(self, *args, hold_max_s=None, **ways):
        super().__init__(*args, **ways)
        self.hold_max_s = hold_max_s
        self.held_s: list[float] = []
        self.went_at: list[float] = []
        self.changes: list[FallbackReason | None] = []
        self._aside: dict[int, float] = {}

    def hears(self, fate, event):
        super().hears(fate, event)
        match event:
            case Dispatched(divided=True) if fate.ticket.assignment.plan.admission.long_prefill.mode is SLICED:
                self._aside[fate.ticket.id] = self.now + 2 * self.network_s  # when the engine has said that it takes it
            case SliceEnded() | Recalled():
                self._aside[fate.ticket.id] = self.now
            case Proceed():
                self.went_at.append(self.now)
                if fate.ticket.id in self._aside:
                    self.held_s.append(self.now - self._aside.pop(fate.ticket.id))
            case DividingChanged(reason=reason):
                self.changes.append(reason)

    def settled(self):
        super().settled()
        self._charges_are_exact()

    def sends(self, post, part):
        super().sends(post, part)
        if part.request.id > 1 << 30:
            longs = [part, *(other for other in post.parts.values() if other.request.id > 1 << 30)]
            unanswered = [each for each in longs if each.fate.first_token_at is None]
            assert len(unanswered) == 1, "one part at a time at an engine"
            assert not part.fate.caller.is_bad, "nothing is computed that the engine would refuse"

    def _charges_are_exact(self):
        for name, engine in self.admission.snapshot().engines.items():
            post = self.posts[name]
            assert engine.slots == len(post.tickets) or self.now <= post.cut_at + 2.0
            assert engine.slots >= len(post.tickets)


def pool_of(
    plan: Plan,
    step_time: StepTime = CPU,
    *,
    kv_blocks: int = LARGE_KV,
    believed_blocks: int | None = None,
    threshold: int = 0,
    batches_in_flight: int = 1,
    tells_cached: bool = False,
) -> WatchedParts:
    """Return one engine on stock flags (fcfs, prefix caching), its step model known as after a calibration.

    believed_blocks: what the gateway takes the cache for; None: what it is.
    """
    flags = EngineFlags(
        BATCHED_TOKENS,
        threshold,
        SEQUENCES,
        kv_blocks=kv_blocks,
        priority_scheduling=False,
        batches_in_flight=batches_in_flight,
        prefix_caching=True,
    )
    limits = {"max_num_batched_tokens": BATCHED_TOKENS, "long_prefill_token_threshold": threshold}
    kv_tokens = ((believed_blocks or kv_blocks) - 1) * BLOCK
    spec = an_engine("a", **limits, max_num_seqs=SEQUENCES, kv_tokens=kv_tokens, prefix_caching=True)
    ways = {"batches_in_flight": batches_in_flight, "tells_cached": tells_cached}
    pool = WatchedParts(plan, {"a": VirtualEngine(flags, step_time)}, [spec], **ways)
    pool.admission.calibrated("a", [sample(step_time, tokens) for tokens in (64, 512, 2048, 4096, LONG)])
    return pool


def sample(step_time: StepTime, tokens: int) -> PrefillSample:
    steps = -(-tokens // BATCHED_TOKENS)
    return PrefillSample(tokens, steps, steps * step_time.base_s + step_time.chunk_s(tokens, 0))


def adversary(seed: int, *, requests: int = 60) -> list[Caller]:
    """Return bursts of shorts, longs of any length, clients that leave in any phase, and requests that are refused."""
    random, at_s, callers = Random(seed), 0.0, []
    for _ in range(requests):
        at_s += random.choice([0.0, 0.01, 0.1, 0.5, 2.0])
        is_long = random.random() < 0.25
        prompt_tokens = random.choice([700, 3000, LONG, 12_000]) if is_long else random.choice([16, 300, SHORT])
        callers.append(
            Caller(
                at_s,
                prompt_tokens,
                random.choice([1, OUTPUT_TOKENS]),
                "batch" if is_long else "interactive",
                leaves_after_s=random.choice([None, None, None, random.expovariate(2.0)]),
                is_bad=is_long and random.random() < 0.2,
            )
        )
    return callers


def longs_served(pool: WatchedParts) -> list[Fate]:
    return [fate for fate in pool.of(LengthClass.LONG) if fate.first_token_at is not None]


# ── under adversaries ──


@WAYS
@pytest.mark.parametrize("longs", [1, 2])
@pytest.mark.parametrize("seed", range(6))
def test_whatever_comes_every_request_ends_once_and_nothing_is_held_beyond_its_hold(mode, longs, seed):
    random = Random(seed)
    batches, threshold = random.choice([1, 2]), random.choice([0, 512])
    pool = pool_of(plan_of(way_of(mode), longs=longs), batches_in_flight=batches, threshold=threshold)
    pool.run(adversary(seed))
    assert pool.held_s, "something was divided"
    if longs == 1:
        assert max(pool.held_s) <= HOLD_S + 1e-6
    bad = [fate for fate in pool.of(LengthClass.LONG) if fate.caller.is_bad and mode is SLICED]
    assert all(fate.sent == [] for fate in bad)
    ended = {fate.outcome for fate in pool.fates.values()}
    assert ended <= {Outcome.COMPLETED, Outcome.CLIENT_GONE}


@pytest.mark.parametrize("batches_in_flight", [1, 2], ids=["sync", "async"])
def test_while_a_short_is_unserved_no_part_goes_unless_its_hold_is_over(batches_in_flight):
    """A short is behind the one part that was at the engine when it came, and behind no other."""
    pool = pool_of(plan_of(way_of(SLICED, hold_max_s=NO_END_S)), batches_in_flight=batches_in_flight)
    random = Random(3)
    callers = [Caller(at_s, LONG, OUTPUT_TOKENS, "batch") for at_s in (0.0, 4.0, 8.0)]
    callers += [Caller(at_s, SHORT, OUTPUT_TOKENS) for at_s in arrivals(random, 4.0, until_s=14.0)]
    pool.run(callers)
    shorts = pool.of(LengthClass.SHORT)
    assert len(pool.went_at) > 15
    for fate in shorts:
        came_at = START + fate.caller.at_s
        assert not [at for at in pool.went_at if came_at < at < fate.first_token_at]


@WAYS
def test_a_long_prompt_waits_for_its_parts_and_holds_and_no_longer_in_a_flood_of_shorts(mode):
    """n·(τ + hold): shorts come as fast as the engine could do them alone, and one long through it all."""
    pool = pool_of(plan_of(way_of(mode)), tells_cached=True)
    flood = arrivals(Random(1), 0.9 * capacity_per_s(CPU, shorts_only), until_s=30.0)
    pool.run([Caller(1.0, LONG, 1, "batch"), *(Caller(at_s, SHORT, 1) for at_s in flood)])
    (fate,) = longs_served(pool)
    model = pool.admission.step_models()["a"]
    if mode is SLICED:
        assert len(fate.sent) == len(parts(model, LONG, 0.3))
    own_s = model.part_s(0, LONG, BATCHED_TOKENS)
    shorts_ahead_s = SEQUENCES * model.prefill_s(SHORT, BATCHED_TOKENS)
    assert fate.engine_ttft_s <= len(fate.sent) * (HOLD_S + shorts_ahead_s) + 2 * own_s
    assert sum(pool.held_s) <= len(fate.sent) * HOLD_S + 1e-6
    assert pool.slices[SliceResult.FAILED] == 0


def parts(model: StepModel, prompt_tokens: int, slice_s: float, block_tokens: int = BLOCK) -> list[int]:
    ends, done = [], 0
    ways = {"slice_s": slice_s, "step_tokens": BATCHED_TOKENS, "block_tokens": block_tokens}
    while (end := slice_end(model, done_tokens=done, prompt_tokens=prompt_tokens, **ways)) is not None:
        ends.append(end - done)
        done = end
    return [*ends, prompt_tokens - done]


def test_with_nothing_beside_them_parts_compute_each_token_once():
    pool = pool_of(plan_of(way_of(SLICED, slice_s=0.15)), tells_cached=True)
    pool.run([Caller(0.0, LONG, 1, "batch")])
    (fate,) = longs_served(pool)
    assert len(fate.sent) >= 8
    assert fate.computed_tokens < LONG + BLOCK * len(fate.sent)
    assert pool.held_s == [0.0] * len(fate.sent)


def test_a_recalled_prompt_keeps_what_whole_steps_have_computed():
    pool = pool_of(plan_of(way_of(RECALLED)), threshold=512)
    pool.run([Caller(0.0, LONG, 1, "batch"), *(Caller(0.4 * number, SHORT, 1) for number in range(1, 6))])
    (fate,) = longs_served(pool)
    assert fate.recalls >= 2
    assert fate.computed_tokens <= LONG + fate.recalls * BLOCK


# ── a cache that is too small ──


def under_pressure(way: LongPrefill | None, *, shorts_per_s: float = 6.0, **cache: Any) -> WatchedParts:
    """Play the same minute of longs with many shorts between: their blocks push the longs' out of a small cache."""
    pool = pool_of(plan_of(way), threshold=0 if way else 640, tells_cached=True, **cache)
    callers = [Caller(3.0 * number, LONG, OUTPUT_TOKENS, "batch") for number in range(12)]
    callers += [Caller(at_s, SHORT, OUTPUT_TOKENS) for at_s in arrivals(Random(2), shorts_per_s, until_s=36.0)]
    pool.run(callers)
    return pool


def repeated_share(pool: WatchedParts) -> float:
    """Return the tokens that were computed more than once, as a share of all that had to be."""
    had_to = sum(fate.caller.prompt_tokens + fate.caller.output_tokens - 1 for fate in pool.fates.values())
    return sum(fate.computed_tokens for fate in pool.fates.values()) / had_to - 1


def short_ttft_s_p95(pool: WatchedParts) -> float:
    ttfts_s = sorted(fate.waited_s + fate.engine_ttft_s for fate in pool.of(LengthClass.SHORT))
    return ttfts_s[int(0.95 * len(ttfts_s))]


@pytest.mark.parametrize("kv_blocks", [560, 640, 800, LARGE_KV])
def test_however_small_the_cache_slices_repeat_little_and_are_no_worse_than_short_first(kv_blocks):
    whole = under_pressure(None, kv_blocks=kv_blocks)
    pool = under_pressure(way_of(SLICED, hold_max_s=5.0), kv_blocks=kv_blocks)
    assert pool.counts[Outcome.COMPLETED] == whole.counts[Outcome.COMPLETED] == len(pool.fates)
    assert repeated_share(pool) <= repeated_share(whole) + 0.05
    assert short_ttft_s_p95(pool) <= 1.1 * short_ttft_s_p95(whole)


def test_a_prefix_is_held_no_longer_than_the_cache_keeps_it():
    pool = under_pressure(way_of(SLICED, hold_max_s=NO_END_S), kv_blocks=800)
    assert pool.slices[SliceResult.FAILED] == 0
    assert pool.changes == []


def test_where_other_work_pushes_prefixes_out_long_prompts_soon_go_whole():
    """The cache is smaller than the gateway believes: after three prompts that lost theirs it stops dividing."""
    pool = under_pressure(way_of(SLICED, hold_max_s=3.0), kv_blocks=560, believed_blocks=LARGE_KV, shorts_per_s=8.0)
    assert pool.changes == [FallbackReason.NOT_CACHED]
    assert pool.slices[SliceResult.FAILED] == 3
    assert pool.slices[SliceResult.FALLBACK] > 0


# ── slices of 150 ms, and feedback ──


@pytest.mark.parametrize("block_tokens", [BLOCK, 128])
@pytest.mark.parametrize("slice_s", [0.15, 0.3])
@pytest.mark.parametrize("step_time", [CPU, FAST, StepTime(0.02, 1e-5, 1e-9)], ids=["cpu", "fast", "dear"])
def test_slices_take_the_time_that_was_aimed_at_to_half_a_block(step_time, slice_s, block_tokens):
    model = StepModel(step_time.base_s, step_time.per_token_s, step_time.per_token_context_s, fitted=True)
    done = 0
    *slices, last = parts(model, 16_384, slice_s, block_tokens)
    for tokens in slices:
        took_s = model.part_s(done, done + tokens, BATCHED_TOKENS)
        one_block_s = model.part_s(done + tokens, done + tokens + block_tokens, BATCHED_TOKENS)
        assert slice_s - one_block_s / 2 - model.base_s <= took_s <= slice_s + one_block_s / 2
        done += tokens
    assert model.part_s(done, done + last, BATCHED_TOKENS) <= 1.25 * slice_s + 1e-9


def test_a_pause_after_a_divided_prompt_follows_what_its_parts_took_and_not_its_holds():
    plan = replace(plan_of(way_of(SLICED, hold_max_s=NO_END_S)), feedback=Feedback(short_ttft_ms=1.0))
    pool = pool_of(plan)
    shorts = [Caller(at_s, SHORT, 1) for at_s in arrivals(Random(5), 8.0, until_s=40.0)]
    pool.run([*(Caller(6.0 * number, LONG, 1, "batch") for number in range(6)), *shorts])
    longs = longs_served(pool)
    control = pool.admission._fleet["a"]._control
    assert control.allowance.duty < 1.0, "shorts missed, so longs pause"
    gaps = [after.ticket.dispatched_at - before.first_token_at for before, after in pairwise(longs)]
    model = pool.admission.step_models()["a"]
    longest_s = 4 * 2 * model.part_s(0, LONG, BATCHED_TOKENS)  # at the least duty, with the parts slowed twofold
    assert max(gaps) <= longest_s
