"""`gateway bench sweep` on the embedded engine, as real processes that start, refuse, die and are left behind."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from bench_stage import Folder, started

from bench.cli import main
from bench.errors import UsageError
from bench.local_gateway import KEYS_FILE
from bench.own_processes import HOST, free_ports
from bench.records.hold import held
from bench.simulation.emulator.vocabulary import FOLDER
from bench.sweep import engine
from bench.sweep.settings import EngineCommand

# The machine that runs the tests may be busy: the client's lag is judged elsewhere.
SWEEP: dict[str, Any] = {
    "version": 1,
    "name": "settings",
    "model": "emulated",
    "tokenizer": str(FOLDER),
    "mixes": ["80/20"],
    "lengths": {
        "short": {"prompt_tokens": 40, "output_tokens": 4},
        "long": {"prompt_tokens": 400, "output_tokens": 4},
    },
    "num_prompts": 8,
    "repeats": 1,
    "goodput": ["short:ttft:60000", "long:ttft:60000"],
    "lag_tolerance_ms": 60000,
    "drain_deadline_s": 30,
}
# An engine that has much to give back: told to end, it goes on answering while there is a file `busy` in its folder.
SLOW_TO_END = """
import os, signal, subprocess, sys, time
running = subprocess.Popen(sys.argv[1:])
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
signal.sigwait({signal.SIGTERM})
while os.path.exists("busy"):
    time.sleep(0.05)
running.terminate()
sys.exit(running.wait())
"""
HELP = "options:\n  --max-num-seqs N\n  --max-num-batched-tokens N\n  --num-gpu-blocks-override N\n  --fault F\n"
Bench = Callable[..., tuple[int, str, str]]


@pytest.fixture
def sweep(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Bench:
    """The command in this process: exit code, stdout, stderr."""

    def run(*words: str) -> tuple[int, str, str]:
        code = main(["sweep", *words, "--result-dir", str(tmp_path / "runs")])
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


def written(
    tmp_path: Path, *, engine: dict[str, Any] | None = None, python: Sequence[str] = (sys.executable,), **changes: Any
) -> tuple[str, int]:
    """sweep.yaml, and the port that its engine is to listen on."""
    (port,) = free_ports(1)
    words = ["-m", "gateway", "emulate", "--port", str(port), "--max-num-seqs", "64"]
    (tmp_path / "help").write_text(HELP)
    said = {"command": [*python, *words], "base_url": f"http://{HOST}:{port}", "help": ["cat", "help"]}
    said["environment"] = {"PYTHONPATH": str(Path.cwd())}  # it is run in the folder of sweep.yaml
    path = tmp_path / "sweep.yaml"
    path.write_text(json.dumps({**SWEEP, "engine": {**said, **(engine or {})}, **changes}))
    return str(path), port


def free(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((HOST, port)) != 0


def files_of(folder: Path, name: str) -> dict[str, Any]:
    """The files of that name of all runs, by arm and load."""
    cells = json.loads((folder / "comparison.json").read_text())["order"]
    return {f"{cell['arm']} {cell['load']}": json.loads((folder / cell["run_id"] / name).read_text()) for cell in cells}


@pytest.mark.timeout(240)
def test_cells_are_measured_on_engines_that_run_as_asked_and_all_others_are_invalid(
    tmp_path: Path, sweep: Bench
) -> None:
    cells = {
        "fewer": {"max_num_seqs": 32, "max_num_batched_tokens": 1024},
        "unknown": {"no_such_flag": 1},
        "no-room": {"num_gpu_blocks_override": 2},
    }
    file, port = written(
        tmp_path,
        engine={"restart": "repeat", "starts_max": 1},
        cells=cells,
        saturation={"concurrency": 4, "warmup_s": 0, "duration_s": 0.5, "num_prompts": 4},
        loads=[0.1, 0.2],
        engine_cost_per_hour=3.6,
    )
    code, out, err = sweep(file)
    assert code == 4, out + err
    assert free(port)
    kept = Folder(tmp_path / "runs")
    said = kept.comparison
    verdicts = {(cell["arm"], cell["load"]): cell["verdict"] for cell in said["order"]}
    assert len(verdicts) == 8
    assert {arm for (arm, _), verdict in verdicts.items() if verdict == "VALID"} == {"B0", "fewer"}
    assert [[arm["arm"] for arm in load["arms"]] for load in said["loads"]] == [["B0", "fewer"]] * 2
    assert [load["arms_left_out"] for load in said["loads"]] == [["unknown", "no-room"]] * 2
    rates = json.loads((kept.path / "rates.json").read_text())["capacity_per_s"]
    assert said["scenario"]["capacity_per_s"] == rates and rates["80/20"] > 0
    account = said["sweep"]
    assert (account["planned_runs"], account["executed_runs"], account["valid_runs"]) == (8, 4, 4)
    assert (account["engine_starts"], account["engine_starts_failed"]) == (4, 1)
    assert "8 runs planned, 4 executed, 4 VALID; 4 engine starts, 1 of them failed." in out
    runs = files_of(kept.path, "run.json")
    starts = [runs[f"fewer load {load}"]["engine_start"] for load in (0.1, 0.2)]
    assert starts[0] == starts[1] and starts[0]["shared_by"] == "the cell's runs of repeat 1"
    effective = runs["fewer load 0.1"]["effective_args"]
    assert (effective["max_num_seqs"], effective["max_num_batched_tokens"], effective["block_size"]) == (
        32,
        1024,
        "16",
    )
    reasons = {cell: verdict["reasons"] for cell, verdict in files_of(kept.path, "verdict.json").items()}
    assert reasons["unknown load 0.1"] == ["the installed engine does not have no_such_flag"]
    first, then = sorted((reasons[f"no-room load {load}"] for load in (0.1, 0.2)), key=lambda each: "given" in each[0])
    assert first == ["the engine ended with code 2 at its start"]
    assert then == [f"given up after 1 starts that failed; the last one: {first[0]}"]
    assert "--num-gpu-blocks-override: 2 blocks" in err, "the last words of its log"
    choice = json.loads((kept.path / "scorecard.json").read_text())["choice"]
    assert "cell" not in choice and choice["misses"]["B0"].startswith("too few of short, long"), "of eight requests"
    assert choice["misses"]["unknown"].startswith("no VALID run")
    assert main(["report", str(kept.path)]) == 4


@pytest.mark.timeout(240)
async def test_a_sweep_that_is_interrupted_and_killed_goes_on_at_once_and_leaves_no_engine(tmp_path: Path) -> None:
    slow = [sys.executable, "-c", SLOW_TO_END, sys.executable]
    file, port = written(tmp_path, python=slow, rates_per_s=[20], grid={"max_num_seqs": [16]})
    results, busy = tmp_path / "runs", tmp_path / "busy"
    words = ["sweep", file, "--result-dir", str(results)]
    for when, how in ((("starting the engine",), signal.SIGINT), (("[2/2]", "seqs16: 8 requests"), signal.SIGKILL)):
        process = await started(*words)
        await told(process, *when)
        if how is signal.SIGKILL:
            busy.touch()
        process.send_signal(how)
        _, err = await process.communicate()
        assert process.returncode in (1, 4, -how), err.decode()
        assert free(port) == (how is signal.SIGINT)
        words = ["sweep", "--resume", str(Folder(results).path)]
    process = await started(*words)
    await told(process, "starting the engine")
    busy.unlink()
    out, err = await process.communicate()
    assert process.returncode == 0, (out + err).decode()
    assert free(port) and not list(Folder(results).path.glob("engine/*.group"))
    kept = Folder(results)
    account = kept.comparison["sweep"]
    assert (account["planned_runs"], account["executed_runs"], account["valid_runs"]) == (2, 2, 2)
    assert {cell["arm"] for cell in kept.comparison["order"]} == {"B0", "seqs16"}


async def told(process: asyncio.subprocess.Process, *parts: str) -> None:
    """Until it has said these, one after another."""
    assert process.stderr is not None
    for part in parts:
        while part not in (line := (await process.stderr.readline()).decode()):
            assert line, f"it ended before {part}"


@pytest.mark.timeout(240)
def test_an_engine_that_dies_behind_a_gateway_voids_its_run_and_the_next_cell_has_a_fresh_one(
    tmp_path: Path, sweep: Bench
) -> None:
    # Eight lone requests warm it up.
    dying = {"fault": "die@12req"}
    file, _ = written(
        tmp_path, rates_per_s=[12], num_prompts=24, cells={"dying": dying}, policy="passthrough", order_seed=3
    )
    code, out, err = sweep(file)
    kept = Folder(tmp_path / "runs")
    verdicts = {cell["arm"]: cell["verdict"] for cell in kept.comparison["order"]}
    assert (code, verdicts) == (4, {"dying": "INVALID", "B0": "VALID"}), out + err
    assert next(iter(verdicts)) == "dying"
    assert kept.comparison["sweep"]["executed_runs"] == 2
    assert "dying: the engine is gone" in err and "fault: die" in err
    assert all("policy_sha256" in run for run in files_of(kept.path, "run.json").values())


def test_where_somebody_answers_already_nothing_is_measured_and_nothing_started(tmp_path: Path, sweep: Bench) -> None:
    file, port = written(tmp_path, rates_per_s=[20], grid={"max_num_seqs": [16]})
    with socket.create_server((HOST, port)):
        code, _, err = sweep(file)
    assert code == 2 and f"something answers at http://{HOST}:{port} already" in err
    kept = Folder(tmp_path / "runs")
    assert kept.comparison["order"] == [] and not list(kept.path.glob("engine/*.log"))


def test_a_policy_that_no_gateway_starts_with_is_known_before_any_engine_is_started(
    tmp_path: Path, sweep: Bench
) -> None:
    file, _ = written(tmp_path, rates_per_s=[20], grid={"max_num_seqs": [16]}, policy="no-such-policy")
    code, _, err = sweep(file)
    kept = Folder(tmp_path / "runs")
    assert code == 1 and "`gateway serve` does not come up" in err
    assert "no-such-policy" in (kept.path / "gateway/trial.log").read_text()
    assert not list(kept.path.glob("engine/*.log"))

    # A second session of one that goes on changes nothing of it: its gateway reads these keys.
    keys = (kept.path / "gateway" / KEYS_FILE).read_bytes()
    with held(kept.path / "plan.json"):
        assert main(["sweep", "--resume", str(kept.path)]) == 2
    assert (kept.path / "gateway" / KEYS_FILE).read_bytes() == keys


def test_a_dry_run_checks_every_flag_and_starts_nothing(tmp_path: Path, sweep: Bench) -> None:
    grid = {"max_num_seqs": [16, 32], "no_such_flag": [1]}
    file, port = written(tmp_path, rates_per_s=[20], grid=grid, repeats=2)
    code, out, _ = sweep(file, "--dry-run")
    assert code == 0 and free(port) and not (tmp_path / "runs").exists()
    assert "seqs16-no_such_flag-1: max_num_seqs 16, no_such_flag 1: INVALID, the engine does not have no_such" in out
    assert "6 runs planned (3 cells x 1 loads (rates and mixes) x 1 seeds x 2 repeats), 6 engine starts" in out


def an_engine(port: int, **changes: Any) -> EngineCommand:
    return EngineCommand.model_validate({"command": ["unused"], "base_url": f"http://{HOST}:{port}", **changes})


@pytest.mark.parametrize(
    ("script", "ready_s_max", "said"),
    [
        ("import sys; print('out of memory'); sys.exit(3)", 60, "ended with code 3 at its start\n  out of memory"),
        ("import os; os.kill(os.getpid(), 9)", 60, "ended with code 137 at its start"),
        ("import signal; print('loading', flush=True); signal.pause()", 0.2, "not ready within 0.2 s"),
    ],
)
def test_an_engine_that_does_not_come_up_says_why_with_the_end_of_its_log(
    tmp_path: Path, script: str, ready_s_max: float, said: str
) -> None:
    (port,) = free_ports(1)
    waits = an_engine(port, ready_s_max=ready_s_max, command=[sys.executable, "-c", script])
    with (
        pytest.raises(engine.StartError) as told_of,
        engine.started(waits, tmp_path / "log", "m", None, tmp_path),
    ):
        pytest.fail("it never serves")
    assert said in str(told_of.value)


ANSWERS = """
import http.server, sys
print({log!r}, flush=True)
class Says(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'{{"data": [{{"id": "m"}}]}}' if self.path == "/v1/models" else {metrics!r})
http.server.HTTPServer(("{host}", {port}), Says).serve_forever()
"""


@pytest.mark.parametrize(
    ("log", "metrics", "model", "said"),
    [
        ("nothing", b"", "m", "no `non-default args` line"),
        ("non-default args: {}", b"", "other", "does not serve the model other"),
        ("non-default args: {}", b"process_start_time_seconds 1000\n", "m", "was started before the engine"),
    ],
)
def test_what_is_not_the_engine_that_was_started_is_not_measured(
    tmp_path: Path, log: str, metrics: bytes, model: str, said: str
) -> None:
    (port,) = free_ports(1)
    command = [sys.executable, "-c", ANSWERS.format(log=log, metrics=metrics, host=HOST, port=port)]
    with (
        pytest.raises(engine.UnfitError, match=said),
        engine.started(an_engine(port, ready_s_max=60, command=command), tmp_path / "log", model, None, tmp_path),
    ):
        pytest.fail("it is not the one")
    assert free(port)


@pytest.mark.parametrize(("mode", "args", "said"), [
    ("w", "non-default args: {}", "does not answer a lone request"),
    ("a", "non-default args: {}", "does not answer a lone request"),
    ("a", "nothing", "no `non-default args` line"),
])  # fmt: skip
def test_a_log_of_the_engines_own_is_read_from_its_start_whether_it_begins_anew_or_not(
    tmp_path: Path, mode: str, args: str, said: str
) -> None:
    (port,) = free_ports(1)
    serves = ANSWERS.format(log=args, metrics=b"", host=HOST, port=port)
    (tmp_path / "serve.py").write_text(f"import sys\nsys.stdout = open('its.log', {mode!r})\n{serves}")
    (tmp_path / "its.log").write_text("non-default args: {}\n" + "an older start\n" * 1000)
    its_own = an_engine(port, ready_s_max=60, log_file=tmp_path / "its.log", command=[sys.executable, "serve.py"])
    with (
        pytest.raises((engine.StartError, engine.UnfitError), match=said),
        engine.started(its_own, tmp_path / "log", "m", None, tmp_path),
    ):
        pytest.fail("it computes nothing")


BESIDE = """
import os, threading
http.server.HTTPServer.allow_reuse_port = True
ends, held = os.pipe()
up, tell = os.pipe()
if os.fork() == 0:
    os.close(held)
    os.setsid()
    threading.Thread(target=lambda: (os.read(ends, 1), os._exit(0))).start()
    server = http.server.HTTPServer(("{host}", {port}), Says)
    os.write(tell, b".")
    server.serve_forever()
os.read(up, 1)
"""


def test_a_second_server_on_the_port_is_noticed(tmp_path: Path) -> None:
    """Two engines share one where both ask for it, and each gets a part of the requests."""
    (port,) = free_ports(1)
    said = {"host": HOST, "port": port}
    both = ANSWERS.format(log="non-default args: {}", metrics=b"", **said).rpartition("http.server.HTTPServer(")
    command = [sys.executable, "-c", both[0] + BESIDE.format(**said) + "".join(both[1:])]
    with (
        pytest.raises(engine.UnfitError, match="another server listens"),
        engine.started(an_engine(port, ready_s_max=60, command=command), tmp_path / "log", "m", None, tmp_path),
    ):
        pytest.fail("half of the requests would go elsewhere")


def test_a_port_that_is_taken_is_refused_before_anything_is_started(tmp_path: Path) -> None:
    with socket.create_server((HOST, 0)) as server:
        taken = an_engine(server.getsockname()[1])
        with pytest.raises(UsageError, match="already"), engine.started(taken, tmp_path / "log", "m", None, tmp_path):
            pytest.fail("it is taken")
    assert not list(tmp_path.iterdir())
