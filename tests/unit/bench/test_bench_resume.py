"""What goes on after an interruption: by one process at a time, from a plan that it understands, with whole runs."""

import errno
import fcntl
import json
import os
from pathlib import Path
from typing import Any

import pytest
from bench_kit import a_record, a_stored_run

from bench.campaign import Campaign
from bench.cli import main
from bench.errors import UsageError
from bench.records.hold import held
from bench.records.stored import set_aside

SCENARIO = {
    "version": 1,
    "name": "first",
    "model": "tiny",
    "tokenizer": "/tok",
    "arms": [{"name": "mine", "base_url": "http://127.0.0.1:9"}],
    "rates_per_s": [2.0],
    "num_prompts": 10,
}
PLANS = {
    "compare": {},
    "ladder": {"good_share": 0.95, "refine": 2},
    "policies": {
        "service_classes": {"short": "interactive", "long": "batch"},
        "gateway": {"policies": {"mine": "passthrough"}, "bases": {"mine": {}}},
    },
}


def begun(folder: Path, kind: str, **changes: Any) -> Path:
    plan = {"kind": kind, "command": ["gateway", "bench", kind, "my file"], "scenario": SCENARIO, **PLANS[kind]}
    plan = {name: value for name, value in (plan | changes).items() if value is not None}
    (folder / "plan.json").write_text(json.dumps(plan))
    return folder


def test_a_folder_is_held_by_one_at_a_time(tmp_path: Path) -> None:
    file = begun(tmp_path, "compare") / "plan.json"
    with held(file), pytest.raises(UsageError, match="another `gateway bench` adds to it"), held(file):
        pass
    with held(file):
        pass
    with pytest.raises(UsageError, match="gone"), held(tmp_path / "gone"):
        pass


def test_a_file_system_without_locks_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def has_none(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", has_none)
    with pytest.raises(UsageError, match="no locks"), held(begun(tmp_path, "compare") / "plan.json"):
        pytest.fail("it is not held")


@pytest.mark.parametrize("kind", PLANS)
def test_a_plan_goes_on_by_the_command_that_began_it_alone(
    tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    begun(tmp_path, kind)
    for command in PLANS:
        code = main([command, "--resume", str(tmp_path), "--dry-run"])
        said = capsys.readouterr()
        assert (code, f"`gateway bench {kind}` began it" in said.err) == ((0, False) if command == kind else (2, True))


@pytest.mark.parametrize(
    ("kind", "changes", "said"),
    [
        ("policies", {"service_classes": None}, "service_classes: is missing"),
        ("policies", {"gateway": {"policies": {"mine": "passthrough"}}}, "gateway.bases: is missing"),
        ("policies", {"gateway": {"policies": {}, "bases": {}}}, "no gateway for the arm mine"),
        ("ladder", {"good_share": None}, "good_share: is missing"),
        ("ladder", {"scenario": None}, "scenario: is missing"),
        ("compare", {"scenario": {**SCENARIO, "priority": "high"}}, "scenario.priority: unknown key"),
        ("compare", {"command": "gateway bench compare"}, "command: "),
    ],
)
def test_a_plan_of_another_version_is_named_with_the_key_and_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str, changes: dict, said: str
) -> None:
    assert main([kind, "--resume", str(begun(tmp_path, kind, **changes))]) == 2
    told = capsys.readouterr().err
    assert f"{tmp_path / 'plan.json'}: " in told and said in told
    anew = f": gateway bench {kind} 'my file'" if changes.get("command") is None else ""
    assert told.rstrip().endswith(f"only that one can go on with it. Begin anew{anew}")


@pytest.mark.parametrize("file", ["verdict.json", "run.json", "measurements.json"])
def test_a_run_that_cannot_be_read_is_named(tmp_path: Path, file: str) -> None:
    run = a_stored_run(tmp_path, "cell", [a_record()])
    (run / file).write_text("{}")
    with pytest.raises(UsageError, match=r"run-000: cannot be read as a run.*Move it away"):
        Campaign(tmp_path, lambda _: pytest.fail("nothing is run here"))


def test_only_where_it_is_asked_for_is_an_invalid_run_set_aside_and_run_again(tmp_path: Path) -> None:
    late = a_record(dispatched_ms=3000.0)
    a_stored_run(tmp_path, "bad", [late])
    a_stored_run(tmp_path, "good", [a_record()])
    plan_of = lambda _: pytest.fail("nothing is run here")  # noqa: E731
    interrupted = a_stored_run(tmp_path, "cut short", [late]) / "verdict.json"
    interrupted.write_text(json.dumps({**json.loads(interrupted.read_text()), "interrupted": True}))
    Campaign(tmp_path, plan_of)
    assert set_aside(tmp_path) == 0
    Campaign(tmp_path, plan_of, retry_invalid=True)
    assert set_aside(tmp_path) == 1
    assert (tmp_path / "run-001").is_dir() and not (tmp_path / "run-000").exists()
    assert interrupted.is_file(), "run again in any case, so it is no run that was repeated for being INVALID"
