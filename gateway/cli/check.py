"""`gateway check`: is the configuration right, what does the plan come to, and what is lost on these engines?

Owns the report and its exit status: 0 also with warnings, 1 where an engine or the issuer of tokens fails; a tokenizer
that cannot count is an error of the configuration (2). Starts no server.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from gateway.cli import calibration_check, configuration, guarantee_tables, plan_tables
from gateway.cli.configuration import Configuration
from gateway.core.guarantee import Guarantee, guarantee
from gateway.core.steptime import StepModel
from gateway.core.types import EngineLimits, Identity
from gateway.identity.keyring import Keyring, tenants
from gateway.policy.fit import findings
from gateway.settings import Engine, Listen, Ops
from gateway.settings import LocalTokenizer as LocalTokenizerSettings

if TYPE_CHECKING:
    from gateway.cli.commands import Commands
    from gateway.cli.engine_check import EngineReport

_WARNING = "warning"
_STATED = {"priority": True, "fcfs": False, "probe": None}

_EXAMPLE = """\
examples:
  gateway check --config gateway.yaml
  gateway check --config gateway.yaml --policy mine.yaml --engines
"""


def register(commands: Commands) -> None:
    parser = commands.add_parser(
        "check",
        help="validate the configuration and print the compiled plan",
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    configuration.add_options(parser)
    parser.add_argument(
        "--engines", action="store_true", help="ask every engine, prove its priority, and fetch the token issuer's keys"
    )
    parser.set_defaults(run=_check)


def _check(options: argparse.Namespace) -> int:
    read = configuration.load(options)
    _check_tokenizers(read)
    reports = _reports(read) if options.engines else {}
    issuer_problem = None
    if options.engines:
        read, issuer_problem = _asked_issuer(read)
    print("\n\n".join(_sections(read, reports)), end="\n\n")
    remarks = list(_remarks(read, reports))
    for remark in remarks:
        print(remark)
    problems = [f"{report.engine}: {problem}" for report in reports.values() for problem in report.problems]
    for problem in problems:
        sys.stderr.write(f"error: engine {problem}.\n")
    if issuer_problem is not None:
        sys.stderr.write(f"error: auth.jwt.jwks_url: {issuer_problem}.\n")
    if problems or issuer_problem is not None:
        return 1
    print(_verdict(sum(remark.startswith(_WARNING) for remark in remarks)))
    return 0


def _verdict(warnings: int) -> str:
    return f"OK, {warnings} warning{'s' if warnings > 1 else ''}" if warnings else "OK"


def _check_tokenizers(read: Configuration) -> None:
    """Load every local tokenizer once; raises ConfigError for the first that cannot count."""
    from gateway.counting.local import LocalTokenizer
    from gateway.counting.model_files import TokenizerUnusable

    for name, pool in read.settings.pools.items():
        if isinstance(pool.tokenizer, LocalTokenizerSettings):
            try:
                LocalTokenizer.load(pool.tokenizer.path, pool.tokenizer.revision).close()
            except TokenizerUnusable as error:
                raise configuration.unusable_tokenizer(read.path, name, error) from error


def _reports(read: Configuration) -> Mapping[str, EngineReport]:
    from gateway.cli.engine_check import ask_engines

    return {report.engine: report for report in ask_engines(read.settings)}


def _asked_issuer(read: Configuration) -> tuple[Configuration, str | None]:
    """Fetch the signing keys, where they are behind an address; say in words why they cannot be had."""
    jwt = read.settings.auth.jwt
    if jwt is None or jwt.jwks_url is None:
        return read, None
    from gateway.identity.fetched_keys import KeysUnreachable
    from gateway.identity.signing_keys import KeySetUnusable, read_key_set
    from gateway.server.token_keys import fetch

    try:
        return replace(read, key_set=read_key_set(asyncio.run(fetch(jwt.jwks_url)))), None
    except (KeysUnreachable, KeySetUnusable) as error:
        return read, error.problem


def _sections(read: Configuration, reports: Mapping[str, EngineReport]) -> Iterator[str]:
    plan = read.plan
    yield (
        f"configuration  {read.path}\n"
        f"listen         {_address(read.settings.listen)}\n"
        f"ops            {_address(read.settings.ops)}\n"
        f"policy         {plan.name}, sha256 {plan.sha256[:12]}"
        + ("" if read.shadow is None else f"\nshadow         {read.shadow.name}, sha256 {read.shadow.sha256[:12]}")
    )
    yield plan_tables.queues_table(plan)
    yield plan_tables.classes_table(plan)
    yield (
        f"admission      {plan.admission.kind}\norder          {plan.order}\n"
        f"short          up to {plan.short_prompt_tokens_max} prompt tokens"
    )
    yield plan_tables.budgets_table(plan)
    yield plan_tables.engines_table(read.settings)
    yield plan_tables.pools_table(read.settings)
    yield plan_tables.keys_table(read.keys, plan.classes)
    if read.key_set is not None:
        yield plan_tables.signing_keys_table(read.key_set)
    if reports:
        from gateway.cli.engine_check import reports_table

        yield reports_table(list(reports.values()))
    for engine, promised in _promises(read, reports):
        yield guarantee_tables.section(engine.name, promised)


def _promises(read: Configuration, reports: Mapping[str, EngineReport]) -> Iterator[tuple[Engine, Guarantee]]:
    """Compute what each engine promises; nothing where the plan gates nothing, or where the engine cannot serve."""
    anonymous = read.settings.auth.anonymous
    identity = None if anonymous is None else Identity("anonymous", anonymous.service_class, anonymous.tenant)
    takes_tokens = read.settings.auth.jwt is not None
    who = tenants(Keyring(read.keys, identity), read.plan.classes, takes_tokens=takes_tokens)
    for engine in read.settings.engines:
        report = reports.get(engine.name)
        if report is not None and report.problems:
            continue
        limits, orders_by_priority = _known(engine, report)
        context_tokens = read.settings.pools[engine.pool].max_model_len
        if context_tokens is None and report is not None:
            context_tokens = report.context_tokens
        measured = None if report is None else report.step_model
        promised = guarantee(
            read.plan,
            limits,
            measured or calibration_check.step_model(engine, limits) or StepModel(),
            context_tokens=context_tokens,
            tenants=who,
            orders_by_priority=orders_by_priority,
        )
        if promised is not None:
            yield engine, promised


def _known(engine: Engine, report: EngineReport | None) -> tuple[EngineLimits, bool | None]:
    """Return the limits and the order by priority: as the engine answered, else as stated."""
    if report is not None:
        return report.limits, report.orders_by_priority
    return engine.limits.stated(), _STATED[engine.scheduling]


def _address(at: Listen | Ops) -> str:
    host = f"[{at.host}]" if ":" in at.host else at.host
    return f"http://{host}:{at.port}"


def _remarks(read: Configuration, reports: Mapping[str, EngineReport]) -> Iterator[str]:
    yield from _engine_remarks(read, reports)
    yield from _access_remarks(read)


def _engine_remarks(read: Configuration, reports: Mapping[str, EngineReport]) -> Iterator[str]:
    settings = read.settings
    for engine in settings.engines:
        limits, orders_by_priority = _known(engine, reports.get(engine.name))
        for finding in findings(read.plan, limits, orders_by_priority=orders_by_priority):
            yield _remark(finding.is_warning, f"engine {engine.name}: {finding.text}")
    versions = {report.engine: report.version for report in reports.values()}
    for difference in calibration_check.differences(settings, versions):
        yield _remark(True, difference)
    for engine, promised in _promises(read, reports):
        for text in guarantee_tables.notes(promised, read.plan):
            yield _remark(False, f"engine {engine.name}: {text}")


def _access_remarks(read: Configuration) -> Iterator[str]:
    settings = read.settings
    if not settings.ops.is_loopback:
        yield _remark(True, f"ops listens on {settings.ops.host}: whoever reaches it reads metrics and status")
    yield from _remarks_on_callers(read)
    served = {model for pool in settings.pools.values() for model in pool.models}
    for entry in read.keys:
        for model in sorted((entry.models or frozenset()) - served):
            yield _remark(True, f"key {entry.id} is for the model {model}, which no pool serves")


def _remarks_on_callers(read: Configuration) -> Iterator[str]:
    auth = read.settings.auth
    if auth.anonymous is not None:
        yield _remark(True, f"callers without a key are let in as {auth.anonymous.service_class} (auth.anonymous)")
    if auth.anonymous is None and auth.jwt is None and not read.keys:
        yield _remark(True, "no key is configured: every request will be refused with 401")
    if auth.jwt is not None and read.key_set is None:
        yield _remark(False, "the keys behind auth.jwt.jwks_url are fetched when the gateway serves, or with --engines")
    for reason in () if read.key_set is None else read.key_set.passed_over:
        yield _remark(True, f"of the token issuer's key set, {reason}; its tokens are refused")


def _remark(is_warning: bool, text: str) -> str:
    return f"{_WARNING if is_warning else 'note'}: {text}."
