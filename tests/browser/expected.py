"""What the page has to show of a state, said a second time, from the state alone."""

from __future__ import annotations

from decimal import ROUND_HALF_UP, Decimal

KINDS = ("would_refuse", "would_admit", "would_wait", "would_not_wait", "would_reorder")


def fixed(value, places=1):
    return str(Decimal(value).quantize(Decimal(1).scaleb(-places), ROUND_HALF_UP))


def used_of(used, cap):
    return f"{used:,}" if cap is None else f"{used:,} of {cap:,}"


def every(state, what):
    """Yield pool, name or number, and value of every line or engine."""
    for pool, each in state["pools"].items():
        items = each[what].items() if isinstance(each[what], dict) else enumerate(each[what])
        yield from ((pool, name, value) for name, value in items)


def lines(state, *, idle):
    running = {}
    for pool, _, engine in every(state, "engines"):
        for one in engine["used"]["running"]:
            key = (pool, one["service_class"], one["length_class"])
            running[key] = running.get(key, 0) + one["requests"]
    return [
        [
            line["service_class"],
            line["length_class"],
            f"{fixed(line['oldest_age_s'])} s of {line['wait_s_max']:g} s",
            f"{line['requests']:,}",
            full(state, pool, line["length_class"]) if line["requests"] else "",
            f"{line['prompt_tokens']:,}",
            f"{running.get((pool, line['service_class'], line['length_class']), 0):,}",
            pool,
        ]
        for pool, _, line in every(state, "lines")
        if idle or line["requests"]
    ]


def full(state, pool, length):
    """Say which budgets have nothing left, and on how many of the pool's engines that take requests."""
    open_engines = [each for name, _, each in every(state, "engines") if name == pool and each["up"] and each["weight"]]
    if not open_engines:
        return "no engine takes requests"
    words = []
    for budget, word, used in (
        ("short_prefill_tokens", "short prefill", lambda used: used["prefill_tokens"]["short"]),
        ("long_prefills", "long prefills", lambda used: used["long_prefills"]),
        ("slots", "slots", lambda used: used["slots"]),
        ("kv_tokens", "KV", lambda used: used["kv_reserved_tokens"]),
    ):
        many = sum(used(each["used"]) >= each["budgets"].get(budget, float("inf")) for each in open_engines)
        if many and budget != {"short": "long_prefills", "long": "short_prefill_tokens"}[length]:
            where = (
                ""
                if len(open_engines) == 1
                else " on all"
                if many == len(open_engines)
                else f" on {many} of {len(open_engines)}"
            )
            words.append(word + where)
    return ", ".join(words) or "no budget"


def engines(state):
    return [
        [
            name,
            engine["state"]
            + (f": {engine['problem']}" if engine["problem"] else "")
            + (", drained" if engine["weight"] == 0 else ""),
            f"{sum(one['requests'] for one in engine['used']['running']):,}",
            used_of(engine["used"]["long_prefills"], engine["budgets"].get("long_prefills")),
            used_of(engine["used"]["prefill_tokens"]["short"], engine["budgets"].get("short_prefill_tokens")),
            used_of(engine["used"]["slots"], engine["budgets"].get("slots")),
            used_of(engine["used"]["kv_reserved_tokens"], engine["budgets"].get("kv_tokens")),
            f"{engine['says']['running']:g}, {engine['says']['waiting']:g}",
            f"{fixed(100 * engine['says']['kv_usage'], 0)} %",
            f"{fixed(engine['says']['age_s'])} s ago",
            "effective" if engine["priority_effective"] else "not used",
            pool,
        ]
        for pool, name, engine in every(state, "engines")
    ]


def parts(state):
    return [
        [
            name,
            engine["dividing"]["mode"],
            prompt["service_class"],
            f"{prompt['part']} of {prompt['parts']}",
            used_of(prompt["done_tokens"], prompt["prompt_tokens"]),
            "" if prompt["held_for_s"] is None else f"{fixed(prompt['held_for_s'])} s",
            f"{prompt['recalls']:,}",
        ]
        for _, name, engine in every(state, "engines")
        for prompt in engine["dividing"]["prompts"]
    ]


def ends(state, kind):
    return [[name, f"{all_of_it:,}"] for name, all_of_it in state["totals"][kind].items()]


def shadow(state):
    found = []
    for line in state["shadow"]["lines"]:
        differ = sum(line[kind] for kind in KINDS)
        counts = [f"{line[kind]:,}" for kind in ("compared", *KINDS)]
        share = f"{fixed(100 * differ / line['compared'])} %"
        found.append([line["service_class"], line["length_class"], line["pool"], *counts, share])
    return found


def line_part(state, row):
    """Return how much of its limit a shown line's oldest has waited."""
    for pool, _, line in every(state, "lines"):
        if [line["service_class"], line["length_class"], pool] == [row[0], row[1], row[-1]]:
            return line["oldest_age_s"] / line["wait_s_max"]
    raise LookupError(row)
