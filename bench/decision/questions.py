"""The operator's five questions, each answered with its evidence, or with what to run. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bench.analysis.comparison import Load
from bench.analysis.scores import BROKEN, KV_PRESSING, PREEMPTIONS_NOTED, REFUSALS, p95_of, planned
from bench.decision import todo
from bench.decision.drills import Drilled, is_of, is_policy
from bench.decision.evidence import Evidence, Run
from bench.decision.rules import identity
from bench.decision.symptoms import engine
from bench.decision.terms import Terms
from bench.decision.verdict import Decision
from bench.decision.words import NOT_ANEW, Anew, Standing
from bench.records.request import Outcome
from bench.tables import milliseconds

NOT_MEASURED = "not measured"
# A first token later than so many times its limit, where nothing is refused, is a cliff and no queue that is bounded.
CLIFF = 3.0
REFUSED_NOTED = 0.01
_PRESSING = ("kv-pressure", "context-limit", "decode-pressure")
_BURSTS = ("long-burst", "flood")


@dataclass(frozen=True, slots=True)
class Answer:
    """says: the evidence, a line each. runs: ids that it is of. anew: what the records would have to be made with."""

    question: str
    answer: str
    says: tuple[str, ...]
    runs: tuple[str, ...] = ()
    todo: tuple[str, ...] = ()
    anew: Anew = NOT_ANEW

    def to_json(self) -> dict[str, Any]:
        said: dict[str, Any] = {"question": self.question, "answer": self.answer, "says": list(self.says)}
        return (
            said | ({"runs": list(self.runs)} if self.runs else {}) | ({"todo": list(self.todo)} if self.todo else {})
        )


def answers(evidence: Evidence, decision: Decision, terms: Terms, held: Sequence[Drilled]) -> list[Answer]:
    """All of what would serve: of the arm that the measured load speaks for, else of the baseline."""
    arm = decision.on_load_alone_arm
    own = [each for each in held if is_of(each, evidence, arm)]
    return [
        _in_time(evidence, decision, arm),
        _burst(evidence, arm, own),
        _stable(evidence, arm, own, terms),
        _reproducible(evidence, decision, arm, terms),
        _worth_it(evidence, decision, arm, terms),
    ]


def _policy(evidence: Evidence, arm: str) -> str:
    return arm if is_policy(evidence, arm) else "POLICY"


def _in_time(evidence: Evidence, decision: Decision, arm: str) -> Answer:
    question = f"Does the main traffic meet its p95 limits for first token and end to end with {arm}?"
    asked = [each.class_name for run in evidence.runs if run.load in evidence.agreed
             for each in run.stored.records if planned(each)]  # fmt: skip
    if not asked:
        return Answer(question, NOT_MEASURED, ("no VALID run at the agreed load",))
    main = max(evidence.class_names, key=asked.count)
    own = [check for check in decision.standing(arm).checks if check.class_name == main]
    lines = [
        f"{main}, {check.load.label}, {check.load.mix}: {check.rule.name} p95 {milliseconds(check.figure.value)} ms "
        f"({milliseconds(check.figure.low)} to {milliseconds(check.figure.high)} over {len(check.runs)} runs), "
        f"limit {milliseconds(check.limit_ms)} ms: {check.standing}"
        for check in own
        if check.figure is not None and check.limit_ms is not None and check.rule.metric in ("ttft_ms", "e2e_ms")
    ]
    absent = [name for metric, name in (("ttft_ms", "first token"), ("e2e_ms", "end to end"))
              if not any(limit.metric == metric for limit in evidence.limits.get(main, ()))]  # fmt: skip
    lines += [f"{main}: no limit was agreed for {' and '.join(absent)}"] if absent else []
    standings = [check.standing for check in own if check.rule.metric in ("ttft_ms", "e2e_ms")]
    answer = "no" if Standing.FAILS in standings else "yes" if set(standings) == {Standing.HOLDS} else "not shown"
    if answer == "yes" and absent:
        answer = f"yes, as far as limits were agreed: none for {' and '.join(absent)}"
    ways = (f"… --goodput {main}:e2e:MS",) if "end to end" in absent else ()
    return Answer(question, answer, tuple(lines), own[0].runs if own else (), ways)


def _burst(evidence: Evidence, arm: str, held: Sequence[Drilled]) -> Answer:
    question = "What does a burst over the normal rate do: bounded queue, refusals or a latency cliff?"
    beyond = [run for run in evidence.runs if run.arm == arm and _is_beyond(run.load, evidence.agreed)]
    lines, ids, found = [], [], []
    for load in dict.fromkeys(run.load for run in beyond):
        runs = evidence.of(arm, load)
        for name in sorted({name for run in runs for name in run.class_names}, reverse=True):
            if (seen := _under(evidence, runs, name)) is not None:
                found.append(seen[0])
                lines.append(f"{load.label}, {load.mix}, {name}: {seen[1]}")
        ids += [run.run_id for run in runs]
    drilled = [each for each in held if each.drill in _BURSTS and not each.client_late]
    lines += [f"drill {each.drill}: {'passed' if each.passed else 'FAILED'}" for each in drilled]
    ids += [each.run_id for each in drilled]
    if not found and not drilled:
        return Answer(
            question,
            NOT_MEASURED,
            (),
            todo=(*todo.beyond(evidence, evidence.agreed[-1]), *todo.drilled(_policy(evidence, arm), _BURSTS)),
        )
    if not found:
        kind = "as the drills expect" if all(each.passed for each in drilled) else "a drill failed"
        return Answer(question, kind, tuple(lines), tuple(ids), todo.beyond(evidence, evidence.agreed[-1]))
    order = ("latency cliff", "refusals", "bounded queue")
    return Answer(question, next(kind for kind in order if kind in found), tuple(lines), tuple(ids))


def _is_beyond(load: Load, agreed: Sequence[Load]) -> bool:
    """More of the same mix than was agreed."""
    rates = [each.rate_per_s for each in agreed if each.mix == load.mix]
    return bool(rates) and load.rate_per_s > max(rates) * 1.05


def _under(evidence: Evidence, runs: Sequence[Run], name: str) -> tuple[str, str] | None:
    """What became of a class, and the figures; None: its clients left, all of them."""
    by_run = [[each for each in run.stored.records if planned(each) and each.class_name == name] for run in runs]
    asked = [each for records in by_run for each in records]
    if not asked:
        return None
    refused = sum(each.outcome in REFUSALS for each in asked) / len(asked)
    broken = sum(each.outcome in BROKEN for each in asked) / len(asked)
    answered = p95_of(by_run, "ttft_ms", unanswered=False)
    limit = next((each.at_most_ms for each in evidence.limits.get(name, ()) if each.metric == "ttft_ms"), math.inf)
    first = None if answered is None else answered.value
    line = f"{refused:.1%} refused, {broken:.1%} broken or open, first token of the others p95 {milliseconds(first)} ms"
    if broken > REFUSED_NOTED or (first is not None and first > CLIFF * limit):
        return "latency cliff", line
    return ("refusals" if refused > REFUSED_NOTED else "bounded queue"), line


def _stable(evidence: Evidence, arm: str, held: Sequence[Drilled], terms: Terms) -> Answer:
    question = "Are preemptions and KV pressure stable at the intended context?"
    runs = [run for load in evidence.agreed for run in evidence.of(arm, load)]
    said = engine(runs)
    served = [each for run in runs for each in run.stored.records if each.outcome is Outcome.COMPLETED]
    longest = max((each.prompt_tokens_planned + each.output_tokens_planned for each in served), default=0)
    drilled = [each for each in held if each.drill in _PRESSING and not each.client_late]
    lines = [f"drill {each.drill}: {'passed' if each.passed else 'FAILED'}" for each in drilled]
    ids = tuple(run.run_id for run in runs) + tuple(each.run_id for each in drilled)
    if "preemptions" not in said or "KV used" not in said:
        ways = ("… --engine-url: its /metrics are read every second", *todo.drilled(_policy(evidence, arm), _PRESSING))
        return Answer(question, NOT_MEASURED, tuple(lines), ids if drilled else (), ways)
    lines.insert(
        0,
        f"{said['preemptions']:.0f} preemptions in {len(runs)} runs, KV used at most {said['KV used']:.0%}, "
        f"the longest request that was answered {longest} tokens",
    )
    calm = said["preemptions a request"] <= PREEMPTIONS_NOTED and said["KV used"] < KV_PRESSING
    calm = calm and all(each.passed for each in drilled)
    if not calm:
        return Answer(question, "no", tuple(lines), ids)
    if terms.context_tokens is None:
        return Answer(
            question, f"yes, up to {longest} tokens", tuple(lines), ids, ("… --context-tokens N: what is intended",)
        )
    if longest < terms.context_tokens:
        lines.append(f"{terms.context_tokens} tokens are intended")
        return Answer(
            question,
            f"not shown beyond {longest} tokens",
            tuple(lines),
            ids,
            todo.drilled(_policy(evidence, arm), _PRESSING),
        )
    return Answer(question, "yes", tuple(lines), ids)


def _reproducible(evidence: Evidence, decision: Decision, arm: str, terms: Terms) -> Answer:
    question = "Is the result reproducible on the exact model revision and GPU configuration?"
    runs = [run for load in evidence.agreed for run in evidence.of(arm, load)]
    names = ("model_revision", "hardware_id", "engine_version", "tokenizer_revision")
    values = {name: sorted({str(identity(run.stored.run, name)) for run in runs}) for name in names}
    unknown = [name for name, each in values.items() if each == ["None"] or not each]
    lines = [f"{name}: {', '.join(each)}" for name, each in values.items() if name not in unknown]
    lines += sorted({f"hardware: {_hardware(run)}" for run in runs if run.stored.run.get("hardware")})
    own = decision.standing(arm).checks
    spreads = [f"{check.class_name}, {check.load.label}, {check.load.mix}: {check.rule.name} p95 "
               f"{milliseconds(check.figure.low)} to {milliseconds(check.figure.high)} ms over {len(check.runs)} runs"
               for check in own if check.figure is not None and check.limit_ms is not None]  # fmt: skip
    mixed = {name: each for name, each in values.items() if len(each) > 1}
    fewest = min((len(evidence.of(arm, load)) for load in evidence.agreed), default=0)
    ids = tuple(run.run_id for run in runs)
    if mixed:
        return Answer(question, f"no: several {', '.join(mixed)}", tuple(lines), ids)
    if fewest < terms.repeats_min:
        says = f"{NOT_MEASURED}: {fewest} of {terms.repeats_min} repeats"
        return Answer(question, says, (*lines, *spreads), ids, anew=Anew(runs=terms.repeats_min))
    if unknown:
        wanted = Anew(facts=tuple(f"{name}=NAME" for name in unknown))
        says = f"not shown: nothing says the {', '.join(unknown)}"
        return Answer(question, says, (*lines, *spreads), ids, anew=wanted)
    return Answer(question, f"yes, over {fewest} repeats", (*lines, *spreads), ids)


def _hardware(run: Run) -> str:
    said = run.stored.run["hardware"]
    gpus = ", ".join(said.get("gpus") or ()) or "no GPU"
    return f"{gpus}; {said.get('cores')} cores, {said.get('cpu')}"


def _worth_it(evidence: Evidence, decision: Decision, arm: str, terms: Terms) -> Answer:
    question = "Does the cost of an accepted response, retries and idle capacity counted, beat the alternative?"
    standing = decision.standing(arm)
    refused = [each for load in evidence.agreed for run in evidence.of(arm, load) for each in run.stored.records
               if planned(each) and each.outcome in REFUSALS]  # fmt: skip
    ids = tuple(run.run_id for load in evidence.agreed for run in evidence.of(arm, load))
    lines = [
        "all of the window is paid for, idle time too; answers that ended in it divide it, warm-up's too",
        f"{len(refused)} refusals: work that is paid for and no answer; what comes again adds to the offered load",
    ]
    if not evidence.has_prices or standing.price is None:
        if standing.price is not None:
            lines.append(f"an answer takes {standing.price:.3g} engine seconds")
        return Answer(question, NOT_MEASURED, tuple(lines), ids, ("… --engine-cost-per-hour X --alternative-cost Y",))
    lines.insert(0, f"an accepted response costs {standing.price:.4g}, at {evidence.prices[arm]:g} an hour")
    if terms.alternative_cost is None:
        return Answer(question, "no alternative was stated", tuple(lines), ids, ("… --alternative-cost Y",))
    lines.insert(1, f"the alternative costs {terms.alternative_cost:.4g}")
    return Answer(question, "yes" if standing.price < terms.alternative_cost else "no", tuple(lines), ids)


def ways(evidence: Evidence, decision: Decision, answered: Sequence[Answer]) -> list[str]:
    """What would show what is not shown, once each; what has to be measured anew in one command."""
    open_ = [each for each in decision.findings if each.standing is not Standing.HOLDS]
    wanted = NOT_ANEW
    for each in [finding.anew for finding in open_] + [answer.anew for answer in answered]:
        wanted = wanted.and_(each)
    return list(dict.fromkeys([*todo.anew(evidence, wanted), *(way for finding in open_ for way in finding.todo)]))
