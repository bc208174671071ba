"""`gateway bench policies` and `faults`: through gateways and engines that the bench starts itself."""

from __future__ import annotations

import json
from pathlib import Path

import bench_kit as kit
import pytest
from bench_stage import PATIENT, Folder, Model, bench, metrics

from bench import local_gateway


def configuration(path: Path, url: str, tokenizer: Path, **engine: str) -> str:
    path.write_text(json.dumps(local_gateway.base_of_engine(url, "tiny", tokenizer, engine | {"calibration": "off"})))
    return str(path)


@pytest.mark.timeout(180)  # three gateways, one after another
async def test_policies_are_compared_through_gateways_that_are_the_benchs_own(folder: Path, tmp_path: Path) -> None:
    served = json.dumps({"object": "list", "data": [{"id": "tiny", "object": "model", "max_model_len": 4096}]}).encode()
    pages = {"/v1/models": served, "/metrics": metrics(started_at=1.0), "/version": b'{"version": "0.32.0"}'}
    pages["/health"] = b""
    async with kit.scripted(Model(folder), pages=pages) as engine, kit.scripted(Model(folder), pages=pages) as other:
        files = [configuration(tmp_path / "all.yaml", engine.url, folder, scheduling="fcfs")]
        files += ["short-first=" + configuration(tmp_path / "sf.yaml", other.url, folder, scheduling="priority")]
        words = ["policies", "passthrough", "short-first", "--aa", "--gateway-config", *files, "--model", "tiny"]
        words += ["--tokenizer", str(folder), "--rates", "20", "--num-prompts", "10"]
        words += ["--short-tokens", "40", "--long-tokens", "700", "--output-tokens", "4"]
        words += ["--goodput", "short:ttft:60000", "--result-dir", str(tmp_path / "runs")]
        code, out, err = await bench(*words, *PATIENT, "--engine-cost-per-hour", "3.6")
        by_engine = [[each for each in one.asked if "chat" in each.path] for one in (engine, other)]
    assert code == 0, out + err
    assert [len(asked) for asked in by_engine] == [20, 10]
    asked = by_engine[0] + by_engine[1]
    kept = Folder(tmp_path / "runs")
    said = kept.comparison
    arms = ["passthrough", "short-first", "passthrough-again"]
    assert [arm["name"] for arm in said["scenario"]["arms"]] == arms
    assert sorted(cell["arm"] for cell in said["order"]) == sorted(arms)
    assert [arm["about"] for arm in said["scenario"]["arms"]] == [
        "engine: scheduling fcfs",
        "engine: scheduling priority",
        "engine: scheduling fcfs",
    ]
    assert len({request.json["cache_salt"] for request in asked}) == 3
    runs = [json.loads((kept.path / name / "run.json").read_text()) for name in kept.runs()]
    assert len({run["policy_sha256"] for run in runs}) == 2
    assert not any("authorization" in request.headers for request in asked)
    texts = [(kept.path / name / "requests.jsonl").read_text() for name in kept.runs()]
    rows = [json.loads(line) for text in texts for line in text.splitlines()]
    assert {(row["class"], row["gateway_length_class"]) for row in rows} == {("short", "short"), ("long", "long")}
    noise = [each for each in said["differences"] if each["arm"] == "short-first" and each["class"] == "short"]
    assert noise and all("noise" in each for each in noise)
    (measured, *_) = [json.loads((kept.path / name / "measurements.json").read_text()) for name in kept.runs()]
    answers_per_s = measured["classes"]["all"]["completed_per_s"]
    if answers_per_s:  # on a busy machine all may end after the half second that is measured
        assert measured["cost"]["per_accepted_response"] == pytest.approx(0.001 / answers_per_s, rel=0.01)
    code, out, err = await bench("decide", str(kept.path))
    assert code == 12 and out.startswith("# keep the baseline: evidence missing"), out + err
    decision = json.loads((kept.path / "decision.json").read_text())
    assert {"limits of every class"} <= {each["rule"] for each in decision["findings"] if each["standing"] != "holds"}
    written = "".join(path.read_text() for path in kept.path.rglob("*") if path.is_file())
    assert "gw-" not in written


@pytest.mark.timeout(180)
async def test_a_drill_is_held_on_an_engine_that_breaks_and_leaves_its_report(tmp_path: Path) -> None:
    code, out, err = await bench("faults", "in-band-error", "--result-dir", str(tmp_path))
    if code == 4:  # the machine that runs the tests was too busy for the client: nothing was drilled
        assert "the client kept time | NO" in out.replace("  ", "")
        return
    assert code == 0, out + err
    kept = Folder(tmp_path)
    (drill,) = json.loads((kept.path / "faults.json").read_text())["drills"]
    assert (drill["passed"], drill["offered"], drill["completed"]) == (True, 24, 23)
    code, out, _ = await bench("report", str(kept.path))
    assert (code, "All 1 drills passed" in out) == (0, True)
    assert "counted each once" in (kept.path / "report.html").read_text()
