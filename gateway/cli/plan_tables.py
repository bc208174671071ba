"""A configuration as tables: the compiled plan, the engines, the pools, the keys.

Owns what `gateway check` shows of each. Judges nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from gateway.cli.table import Cell, table
from gateway.core.plan import AdmissionPlan, ClassPlan, Plan
from gateway.core.types import LengthClass
from gateway.identity.keys import KeyEntry
from gateway.settings import Engine, LocalTokenizer, Settings


def classes_table(plan: Plan) -> str:
    header = [
        "service class", "rank", "weight", "queue requests", "queue tokens", "queue bytes", "wait short s",
        "wait long s", "tenant queued", "tenant running", "output tokens",
    ]  # fmt: skip
    return table(header, [_class_row(each) for each in sorted(plan.classes.values(), key=lambda each: each.rank)])


def _class_row(each: ClassPlan) -> list[Cell]:
    return [
        each.name,
        each.rank,
        each.weight,
        each.queue.requests_max,
        each.queue.prompt_tokens_max,
        each.queue.bytes_max,
        each.wait_s_max[LengthClass.SHORT],
        each.wait_s_max[LengthClass.LONG],
        each.tenant.queued_requests_max,
        each.tenant.running_max,
        each.output_tokens_max,
    ]


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
    return rows


def engines_table(settings: Settings) -> str:
    header = ["engine", "pool", "url", "scheduling", "step tokens", "long threshold", "sequences", "KV tokens"]
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
            pool.region,
            "auto" if pool.max_model_len is None else str(pool.max_model_len),
            f"local {pool.tokenizer.path}" if isinstance(pool.tokenizer, LocalTokenizer) else pool.tokenizer.kind,
        ]
        for name, pool in settings.pools.items()
    ]
    return table(["pool", "models", "region", "context", "tokenizer"], rows)


def keys_table(keys: tuple[KeyEntry, ...], classes: Mapping[str, ClassPlan]) -> str:
    counted = Counter(entry.service_class for entry in keys)
    ranked = sorted(classes.values(), key=lambda each: each.rank)
    return table(["service class", "keys"], [[each.name, counted[each.name]] for each in ranked])
