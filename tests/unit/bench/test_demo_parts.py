"""What the demonstration is made of, before anything is started."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import scenario
from bench.demo import command, stage
from bench.demo.stage import Load
from bench.errors import UsageError
from bench.report.page import page
from gateway.settings import load as load_settings

LOAD = Load(rate_per_s=4, seconds=10, seed=3)


def test_a_stages_files_are_ones_that_the_gateway_and_the_bench_take(tmp_path: Path) -> None:
    made = stage.prepared(tmp_path / "demo", "short-first", "h200", LOAD)
    read = scenario.load(made.scenario)
    assert [arm.name for arm in read.arms] == ["passthrough", "short-first"]
    assert (read.rates_per_s, read.duration_s, read.seeds) == ([4], 10, [3])
    for arm, port in made.arms.items():
        settings = load_settings(made.configuration(arm))
        assert (settings.policy, settings.listen.port, settings.engines[0].url) == (arm, port, made.engine_url)
    assert len({made.engine_port, *made.arms.values()}) == 3


def test_keys_are_kept_as_hashes_alone_and_told_once(tmp_path: Path) -> None:
    made = stage.prepared(tmp_path, "short-first", "h200", LOAD)
    written = "".join(path.read_text() for path in tmp_path.iterdir())
    lines = stage.to_repeat(made)
    for name, key in made.keys.items():
        assert key not in written
        assert f"export {name}={key}" in lines
    assert lines[-1].endswith(f"bench compare {made.scenario}")


@pytest.mark.parametrize("policy", ["passthrough", "../mine.yaml"])
def test_a_policy_that_cannot_be_shown_is_refused(policy: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--policy", policy]) == 2
    assert "--policy" in capsys.readouterr().err


def test_a_folder_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="--out"):
        stage.prepared(tmp_path / "file" / "demo", "short-first", "h200", LOAD)


def test_a_page_needs_nothing_else_and_shows_its_text_as_text() -> None:
    markdown = "### load <1>\n\nTraces: a & b.\n\n| arm | p95 |\n|-----|----:|\n| x<y | 12 |"
    made = page("A & B", ["Said."], b"\x89PNG", markdown, ["gateway emulate --port 1"])
    for part in ("<h3>load &lt;1&gt;</h3>", "<p>Traces: a &amp; b.</p>", "<tr><td>x&lt;y</td><td>12</td></tr>"):
        assert part in made
    assert 'src="data:image/png;base64,iVBORw=="' in made
    assert "http" not in made.replace("http-equiv", "")
