"""One-step entry and the long lane's chunks, as facts about vLLM's own Scheduler class driven step by step.

The scheduler runs in the engine's environment, without a model and without a GPU: one process judges all that is
asked here and answers in JSON. What it does is in scheduler_driver.py.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]

HERE = Path(__file__).parent
REPOSITORY = HERE.parents[1]
SIMULATION = REPOSITORY / "tests" / "simulation"
CASES = 330
CLAUSES = ("long_prefills", "decodes", "short_tokens", "threshold", "slots", "kv")
ASKED = {
    "premise": {"check": "one_step_entry", "cases": CASES, "clause": None},
    **{clause: {"check": "one_step_entry", "cases": 12, "clause": clause} for clause in CLAUSES},
    "priority": {"check": "steps_behind_an_unfit_long", "priority": True},
    "fcfs": {"check": "steps_behind_an_unfit_long", "priority": False},
    "same steps": {"check": "same_steps", "traces": 400},
    "long flood": {"check": "behind_the_gateway", "batches_in_flight": 1, "shorts_per_s": 2, "longs_per_s": 3},
    "long flood, async": {"check": "behind_the_gateway", "batches_in_flight": 2, "shorts_per_s": 2, "longs_per_s": 3},
    "short flood": {"check": "behind_the_gateway", "batches_in_flight": 1, "shorts_per_s": 40, "longs_per_s": 0.3},
}


@pytest.fixture(scope="module")
def engine_python(engine_home):
    """The interpreter of the environment that vLLM is installed in."""
    return engine_home.python


@pytest.fixture(scope="module")
def found(engine_python):
    """All answers, by the name they were asked under."""
    run = subprocess.run(
        [engine_python, HERE / "scheduler_driver.py"],
        input=json.dumps(list(ASKED.values())),
        env=os.environ
        | {
            "PYTHONPATH": os.pathsep.join(map(str, (REPOSITORY, SIMULATION))),
            "VLLM_LOGGING_LEVEL": "ERROR",
            "HF_HUB_OFFLINE": "1",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-4000:]
    return dict(zip(ASKED, json.loads(run.stdout.splitlines()[-1]), strict=True))


def test_within_the_premise_every_short_is_wholly_prefilled_in_the_first_step_after_it_arrives(found):
    cases = found["premise"]
    assert len(cases) == CASES
    assert [case["example"] for case in cases if case["late"]] == []
    assert sum(case["shorts"] for case in cases) > 15_000
    assert max(case["fullest"] for case in cases) == 1.0, (
        "the adversary left room: the inequality was not put to the test"
    )


def test_within_the_premise_every_long_in_prefill_gets_its_whole_chunk_in_every_step(found):
    assert sum(case["slowed"] for case in found["premise"]) == 0
    assert sum(case["long_chunks"] for case in found["premise"]) > 8_000


@pytest.mark.parametrize("clause", CLAUSES)
def test_each_clause_of_the_premise_is_needed(found, clause):
    assert sum(case["late"] for case in found[clause]) > 0


def test_priority_lets_a_short_pass_a_long_that_finds_no_kv_where_first_come_first_served_does_not(found):
    assert found["priority"] == 1
    assert found["fcfs"] > 100


def test_the_model_of_the_scheduler_takes_the_same_steps_as_the_scheduler(found):
    assert found["same steps"]["differs"] == ""
    assert found["same steps"]["steps"] > 20_000
    assert found["same steps"]["preemptions"] > 100
    assert found["same steps"]["cached_tokens"] > 100_000


@pytest.mark.parametrize("flood", ["long flood", "long flood, async", "short flood"])
def test_behind_admission_every_dispatched_short_enters_in_one_step_whatever_floods(found, flood):
    answer = found[flood]
    assert answer["late"] == 0
    assert answer["shorts"] > 80
    assert answer["longs"] > 5
    assert answer["ended"] == answer["offered"]
