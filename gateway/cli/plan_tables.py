"""A configuration as tables: the compiled plan, the engines, the pools, the keys.

Owns what `gateway check` shows of each. Judges nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from gateway.cli.table import Cell, table
from gateway.core.plan import AdmissionKind, AdmissionPlan, ClassPlan, Plan
from gateway.core.types import LengthClass
from gateway.identity.keys import KeyEntry
from gateway.settings import Engine, LocalTokenizer, Settings

if TYPE_CHECKING:
    from gateway.identity.signing_keys import KeySet

_MIB = 1 << 20


def queues_table(plan: Plan) -> str:
    """Who may wait and how long. Under a plan that gates nothing nobody waits, so no bound of these binds."""
    header = [
        "service class", "queue requests", "queue tokens", "queue MiB", "tenant queued", "wait short s", "wait long s",
    ]  # fmt: skip
    waits = plan.admission.kind is not AdmissionKind.NONE
    return table(header, [_queue_row(each) if waits else _unbounded(each, header) for each in _ranked(plan.classes)])


def _queue_row(each: ClassPlan) -> list[Cell]:
    return [
        each.name,
        each.queue.requests_max,
        each.queue.prompt_tokens_max,
        each.queue.bytes_max / _MIB,
        each.tenant.queued_requests_max,
        each.wait_s_max[LengthClass.SHORT],
        each.wait_s_max[LengthClass.LONG],
    ]


def _unbounded(each: ClassPlan, header: Sequence[str]) -> list[Cell]:
    return [each.name, *[None] * (len(header) - 1)]


def classes_table(plan: Plan) -> str:
    """What a class may take of the engines."""
    gates = plan.admission.kind is not AdmissionKind.NONE
    rows: list[list[Cell]] = [
        [each.name, each.rank, each.weight, each.tenant.running_max if gates else None, each.output_tokens_max]
        for each in _ranked(plan.classes)
    ]
    return table(["service class", "rank", "weight", "tenant running", "output tokens"], rows)


def _ranked(classes: Mapping[str, ClassPlan]) -> list[ClassPlan]:
    return sorted(classes.values(), key=lambda each: each.rank)


def budgets_table(plan: Plan) -> str:
    return table(["budget of each engine", "limit"], _budget_rows(plan.admission))


def _budget_rows(admission: AdmissionPlan) -> list[list[Cell]]:
    rows: list[list[Cell]] = [
        ["long prompts in prefill", admission.long_prefills_max],
        ["short prompt tokens in prefill", admission.short_prefill_tokens_max],
    ]
    if admission.slots is not None:
        rows += [
            ["sequences", admission.slots.total],
            ["sequences kept for short prompts", admission.slots.short_reserve],
            ["sequences kept for long prompts", admission.slots.long_reserve],
        ]
    if admission.kv is not None:
        rows += [
            ["KV tokens kept for short prompts", admission.kv.short_reserve_tokens],
            ["KV tokens kept for long prompts", admission.kv.long_reserve_tokens],
        ]
    elif admission.kind is AdmissionKind.TOKEN_BUDGET:
        rows.append(["KV kept for each", "the share that its kept sequences are"])
    return rows


def engines_table(settings: Settings) -> str:
    header = ["engine", "pool", "url", "scheduling", "step tokens", "threshold", "sequences", "KV tokens"]
    return table(header, [_engine_row(engine) for engine in settings.engines])


def _engine_row(engine: Engine) -> list[Cell]:
    limits = engine.limits
    return [
        engine.name,
        engine.pool,
        engine.url,
        engine.scheduling,
        limits.max_num_batched_tokens,
        limits.long_prefill_token_threshold,
        limits.max_num_seqs,
        "auto" if limits.kv_tokens is None else str(limits.kv_tokens),
    ]


def pools_table(settings: Settings) -> str:
    rows: list[list[Cell]] = [
        [
            name,
            ", ".join(pool.models),
            pool.length_class or "all",
            pool.region,
            "auto" if pool.max_model_len is None else str(pool.max_model_len),
            f"local {pool.tokenizer.path}" if isinstance(pool.tokenizer, LocalTokenizer) else pool.tokenizer.kind,
        ]
        for name, pool in settings.pools.items()
    ]
    return table(["pool", "models", "prompts", "region", "context", "tokenizer"], rows)


def keys_table(keys: tuple[KeyEntry, ...], classes: Mapping[str, ClassPlan]) -> str:
    counted = Counter(entry.service_class for entry in keys)
    return table(["service class", "keys"], [[each.name, counted[each.name]] for each in _ranked(classes)])


def signing_keys_table(key_set: KeySet) -> str:
    return table(["signing key", "algorithm"], [[name, key.algorithm_name] for name, key in key_set.keys.items()])
