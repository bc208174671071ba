import hashlib
import json
from pathlib import Path

import pytest

from gateway.core.plan import AdmissionKind, OrderKind
from gateway.core.types import EngineLimits, LengthClass
from gateway.policy import source
from gateway.policy.fit import findings
from gateway.strict_yaml import ConfigError

POLICIES = Path(__file__).parents[3] / "policies"


def test_the_shipped_policies_are_found_by_name() -> None:
    assert source.names() == sorted(path.stem for path in POLICIES.glob("*.yaml"))
    assert {"passthrough", "bounded-fifo", "engine-priority", "short-first"} <= set(source.names())


@pytest.mark.parametrize("name", source.names())
def test_a_shipped_policy_compiles_under_its_own_name(name: str) -> None:
    assert source.load(name).name == name


@pytest.mark.parametrize("name", source.names())
def test_a_shipped_policy_has_the_three_service_classes(name: str) -> None:
    ranked = sorted(source.load(name).classes.values(), key=lambda each: each.rank)
    assert [(each.name, each.weight) for each in ranked] == [("interactive", 16), ("standard", 4), ("batch", 1)]


@pytest.mark.parametrize("name", source.names())
def test_a_shipped_policy_says_what_it_is_for_when_to_choose_it_and_which_flags_it_wants(name: str) -> None:
    comment = source.text(name).split("\nversion:")[0]
    assert all(line.startswith("#") for line in comment.splitlines())
    assert len(source.summary(name)) > 20
    assert "Choose it" in comment
    assert "Engine flags:" in comment


def test_the_hash_is_over_the_files_bytes() -> None:
    assert source.load("short-first").sha256 == hashlib.sha256((POLICIES / "short-first.yaml").read_bytes()).hexdigest()


def test_a_copy_of_a_shipped_policy_is_the_same_plan(tmp_path: Path) -> None:
    (tmp_path / "copy.yaml").write_text(source.text("short-first"))
    assert source.load(str(tmp_path / "copy.yaml")) == source.load("short-first")


def test_the_json_schema_beside_the_policies_is_current() -> None:
    assert (POLICIES / "schema.json").read_text() == source.json_schema()


def test_the_json_schema_closes_every_mapping_and_describes_what_needs_a_unit() -> None:
    schema = json.loads(source.json_schema())
    for name, section in schema["$defs"].items():
        if section.get("type") == "object":
            assert section["additionalProperties"] is False, name
    assert schema["$defs"]["Queue"]["properties"]["bytes_max"]["description"]


def test_an_unknown_name_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(ConfigError, match="Write short-first if that is meant, or give the path of a file"):
        source.load("shortfirst")
    with pytest.raises(ConfigError, match="Use one of bounded-fifo, engine-priority"):
        source.load("q")


def test_a_missing_policy_file_is_named() -> None:
    with pytest.raises(ConfigError, match=r"absent/policy\.yaml: does not exist"):
        source.load("absent/policy.yaml")


def test_passthrough_gates_nothing() -> None:
    plan = source.load("passthrough")
    assert (plan.admission.kind, plan.order) == (AdmissionKind.NONE, OrderKind.ARRIVAL)


def test_engine_priority_leaves_the_number_of_sequences_to_the_engine_and_has_no_token_budgets() -> None:
    plan = source.load("engine-priority")
    assert (plan.admission.kind, plan.order) == (AdmissionKind.SLOTS, OrderKind.STRICT_PRIORITY)
    assert plan.admission.slots is not None
    assert plan.admission.slots.total > 1024
    assert plan.admission.long_prefills_max is None
    assert plan.admission.short_prefill_tokens_max is None


def test_short_first_fits_the_engine_flags_that_it_asks_for() -> None:
    limits = EngineLimits(max_num_batched_tokens=2048, long_prefill_token_threshold=640, max_num_seqs=128)
    found = findings(source.load("short-first"), limits, orders_by_priority=True)
    assert [finding.text for finding in found if finding.is_warning] == []


@pytest.mark.parametrize("name", ["short-first", "engine-priority"])
def test_what_a_class_may_queue_is_dispatched_within_its_wait_even_while_every_class_floods(name: str) -> None:
    plan = source.load(name)
    rate, longest = 12_800, 8192
    weights = sum(each.weight for each in plan.classes.values())
    for each in plan.classes.values():
        share = each.weight / weights
        served = rate * each.wait_s_max[LengthClass.LONG]
        others = longest * (len(plan.classes) - 1)
        assert each.queue.prompt_tokens_max <= share * (served - longest - others) - (1 - share) * longest
