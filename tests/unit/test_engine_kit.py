"""The engine kit without an engine: flags, readback, and what it does when something is amiss."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from deploy.engine import home as homes
from deploy.engine import install, launch, readback, running
from deploy.engine.__main__ import main
from deploy.engine.flags import EngineFlags
from deploy.engine.home import EngineError, Home
from deploy.engine.running import Engine

LOG = (
    "(APIServer pid=1) INFO 01-01 00:00:00 [api_utils.py:286] non-default args: {'host': '127.0.0.1', "
    "'model': '/m', 'served_model_name': ['tiny'], 'max_num_batched_tokens': 2048, 'max_num_seqs': 128, "
    "'long_prefill_token_threshold': 640, 'scheduling_policy': 'priority'}\n"
)
METRICS = (
    "# TYPE vllm:cache_config_info gauge\n"
    'vllm:cache_config_info{block_size="128",enable_prefix_caching="False",engine="0",kv_cache_size_tokens="1048576",'
    'num_gpu_blocks="8192"} 1.0\n'
)
OURS = EngineFlags()
# Serves what readback asks, from the standard library, with whatever flags the test wrote into it.
PRETENDER = """#!{python} -S
import http.server, json, sys
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        cards = {{"data": [{{"id": "tiny", "root": {root!r}, "max_model_len": 16384}}]}}
        body = {{"/metrics": {metrics!r}, "/v1/models": json.dumps(cards)}}.get(self.path, "").encode()
        self.send_response(200)
        self.end_headers()
        self.wfile.write(body)
print({log!r}, end="", flush=True)
http.server.HTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Answer).serve_forever()
"""


@pytest.fixture
def home(tmp_path):
    """An installed home whose Python says one line and dies."""
    made = Home(root=tmp_path / "home", engines=tmp_path / "home" / "engines")
    made.model.mkdir(parents=True)
    made.stamp.write_text(json.dumps({"recipe": homes.recipe()}))
    made.python.parent.mkdir(parents=True)
    write_python(made, "#!/bin/sh\necho 'no such model'\nexit 3\n")
    return made


def write_python(home, script):
    home.python.write_text(script)
    home.python.chmod(0o755)


def pretend(home, log=LOG, metrics=METRICS, root=None):
    write_python(home, PRETENDER.format(python=sys.executable, log=log, metrics=metrics, root=root or str(home.model)))


def noted(home, **members):
    engine = Engine(
        name="x",
        pid=0,
        start_ticks=0,
        port=1,
        model="tiny",
        tokenizer_path=home.model,
        log=home.root / "log",
        flags=OURS,
        owner_pid=None,
        effective={"kv_tokens": 1},
    )
    engine = replace(engine, **members)
    running.folder(home, engine.name).mkdir(parents=True, exist_ok=True)
    running.write(home, engine)
    return engine


def test_flags_are_vllms_own_and_what_is_not_known_is_passed_on():
    flags = EngineFlags.parse(["--max-num-seqs", "8", "--scheduling-policy=fcfs", "--seed", "1"])
    assert flags == EngineFlags(max_num_seqs=8, scheduling_policy="fcfs", extra=("--seed", "1"))
    assert EngineFlags.parse(flags.argv()) == flags


def test_a_bad_flag_value_is_a_usage_error():
    with pytest.raises(SystemExit) as ended:
        EngineFlags.parse(["--scheduling-policy", "random"])
    assert ended.value.code == 2


def test_the_flags_in_force_are_read_from_log_and_metrics():
    assert readback.effective_flags(LOG, METRICS) == {
        "scheduling_policy": "priority",
        "long_prefill_token_threshold": 640,
        "max_num_batched_tokens": 2048,
        "max_num_seqs": 128,
        "enable_prefix_caching": False,
        "kv_tokens": 1048576,
    }


def test_a_policy_and_a_threshold_that_the_log_leaves_out_are_the_defaults():
    log = LOG.replace(", 'long_prefill_token_threshold': 640, 'scheduling_policy': 'priority'", "")
    effective = readback.effective_flags(log, METRICS)
    assert (effective["scheduling_policy"], effective["long_prefill_token_threshold"]) == ("fcfs", 0)


def test_the_last_start_counts_also_where_it_was_asked_for_what_is_no_plain_value():
    """vLLM prints objects of its own there as they come."""
    again = LOG.replace("'max_num_seqs': 128", "'max_num_seqs': 64, 'compilation_config': CompilationConfig(mode=3)")
    assert again != LOG
    assert readback.effective_flags(LOG + again, METRICS)["max_num_seqs"] == 64


@pytest.mark.parametrize(("log", "metrics"), [("", METRICS), (LOG, "")])
def test_an_engine_that_tells_nothing_is_not_believed(log, metrics):
    with pytest.raises(ValueError, match="has no"):
        readback.effective_flags(log, metrics)


def test_differences_name_the_flag_and_both_values():
    found = OURS.differences({"max_num_seqs": 8, "scheduling_policy": "priority"})
    assert found == ["max_num_seqs is 8, asked was 128"]


def test_engine_home_overrides_the_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("ENGINE_HOME", str(tmp_path / "there"))
    assert homes.find() == Home(root=tmp_path / "there", engines=tmp_path / "there" / "engines")
    monkeypatch.setenv("ENGINE_HOME", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert homes.find().root.parent == tmp_path / "vllm-admission-gateway"
    assert homes.recipe() in homes.find().root.name


def test_an_install_counts_only_with_the_stamp_of_this_very_recipe(home):
    assert install.installed(home)
    home.stamp.write_text(json.dumps({"recipe": "another"}))
    assert not install.installed(home)
    home.stamp.write_text("{")
    assert not install.installed(home)
    home.stamp.unlink()
    assert not install.installed(home)


def test_a_folder_with_somebody_elses_things_is_refused_and_left_alone(tmp_path):
    (tmp_path / "venv").mkdir()
    with pytest.raises(EngineError, match="was not made by this"):
        install.ensure(Home(root=tmp_path, engines=tmp_path / "engines"))
    assert (tmp_path / "venv").is_dir()


def test_a_model_that_cannot_be_built_leaves_no_folder_and_says_why(home, tmp_path):
    with pytest.raises(EngineError, match="no such model"):
        install.build_model(home, tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_an_engine_that_is_not_installed_is_not_started(home):
    home.stamp.unlink()
    with pytest.raises(EngineError, match="make engine"):
        launch.start("x", launch.free_port(), home=home)


def test_an_engine_that_dies_is_reported_with_its_code_and_the_logs_tail(home):
    with pytest.raises(EngineError, match=r"(?s)ended with code 3 .*no such model"):
        launch.start("x", launch.free_port(), home=home)
    assert running.read(home, "x") is None


def test_a_taken_port_is_refused_before_anything_is_started(home):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(EngineError, match=r"cannot be used .*ENGINE_PORT"):
            launch.start("x", taken.getsockname()[1], home=home)


def test_a_started_engine_is_found_again_and_ends_when_it_is_stopped(home):
    pretend(home)
    port = launch.free_port()
    engine = launch.start("x", port, home=home)
    assert engine.alive
    assert launch.start("x", port, home=home) == engine
    assert launch.stop("x", home=home)
    assert not engine.alive
    assert not launch.stop("x", home=home)


def test_a_running_name_is_not_given_to_other_flags(home):
    pretend(home)
    port = launch.free_port()
    engine = launch.start("x", port, home=home)
    try:
        with pytest.raises(EngineError, match="already runs"):
            launch.start("x", port, EngineFlags(max_num_seqs=8), home=home)
        assert engine.alive
    finally:
        launch.stop("x", home=home)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"log": LOG.replace("'max_num_seqs': 128", "'max_num_seqs': 64")}, "max_num_seqs is 64, asked was 128"),
        ({"log": LOG.replace(", 'scheduling_policy': 'priority'", "")}, "scheduling_policy is 'fcfs'"),
        ({"metrics": METRICS.replace('"False"', '"True"')}, "enable_prefix_caching is True"),
        ({"log": "nothing\n"}, "does not tell its flags"),
        ({"root": "/another/model"}, "another server answers"),
    ],
    ids=["seqs", "policy", "prefix caching", "silent", "another server"],
)
def test_an_engine_that_is_not_what_was_asked_for_is_ended_and_refused(home, changes, said):
    pretend(home, **changes)
    with pytest.raises(EngineError, match=said):
        launch.start("x", launch.free_port(), home=home)
    assert running.read(home, "x") is None


def test_an_engine_whose_start_was_cut_off_is_replaced(home):
    pretend(home)
    port = launch.free_port()
    cut_off = launch.start("x", port, home=home)
    running.write(home, replace(cut_off, effective={}))
    engine = launch.start("x", port, home=home)
    assert (cut_off.alive, engine.alive) == (False, True)
    launch.stop("x", home=home)


def test_a_process_that_took_over_the_id_is_never_ended(home):
    with subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE) as other:
        noted(home, pid=other.pid, start_ticks=running.start_ticks(other.pid) - 1)
        assert not launch.stop("x", home=home)
        assert other.poll() is None
        other.stdin.close()
        assert other.wait() == 0


def test_engines_whose_owner_is_gone_are_ended_and_others_are_not(home):
    pretend(home)
    gone = subprocess.Popen(["/bin/true"])
    gone.wait()
    kept = launch.start("kept", launch.free_port(), home=home)
    left = launch.start("left", launch.free_port(), owner_pid=gone.pid, home=home)
    launch.stop_ownerless(home)
    assert (kept.alive, left.alive) == (True, False)
    launch.stop("kept", home=home)


def test_a_note_of_another_form_names_the_process_and_the_file(home):
    noted(home, pid=4321)
    path = running.folder(home, "x") / "engine.json"
    path.write_text(json.dumps({"pid": 4321, "colour": "red"}))
    with pytest.raises(EngineError, match=r"engine\.json .*4321"):
        running.read(home, "x")


def test_the_command_line_says_what_failed_and_exits_1(monkeypatch, tmp_path, capsys):
    (tmp_path / "mine").touch()
    monkeypatch.setenv("ENGINE_HOME", str(tmp_path))
    assert main(["install"]) == 1
    assert "name an empty folder in ENGINE_HOME" in capsys.readouterr().err


def test_status_shows_what_is_there(monkeypatch, home, capsys):
    monkeypatch.setenv("ENGINE_HOME", str(home.root))
    noted(home)
    assert main(["status"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"home: {home.root} (installed)",
        "x: gone pid 0 http://127.0.0.1:1 {'kv_tokens': 1}",
    ]


def test_the_pins_name_no_index_and_hash_everything():
    for path in (homes.REQUIREMENTS, *Path(homes.REPOSITORY / "deploy" / "requirements").glob("*.txt")):
        entries = path.read_text().replace("\\\n", " ").splitlines()
        pins = [entry for entry in entries if entry and not entry.startswith("#")]
        assert pins
        assert all("==" in pin and "--hash=sha256:" in pin and "://" not in pin for pin in pins), path.name
