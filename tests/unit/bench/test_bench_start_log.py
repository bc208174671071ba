"""An engine's log is read for its last start alone, however long it has become."""

import tracemalloc
from pathlib import Path

import pytest

from bench.engine.start_log import LINE_BYTES_MAX, arguments, config_word, last_start
from bench.errors import UsageError
from bench.manifest import heard

ASKED = "(APIServer pid=1) INFO 01-01 00:00:00 [api_utils.py:286] non-default args: {'max_num_seqs': %d}\n"
RUNS = "(EngineCore pid=2) INFO 01-01 Initializing a V1 LLM engine (v0.32.0) with config: dtype=%s, seed=0\n"


def test_the_last_start_of_several_counts_whatever_stands_around_it(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    log.write_text("first\n" + ASKED % 8 + RUNS % "float16" + "served\n" * 1000 + ASKED % 16 + RUNS % "bfloat16" + "on")
    said = last_start(log)
    assert (arguments(said), config_word(said, "dtype")) == ({"max_num_seqs": 16}, "bfloat16")


def test_a_start_that_has_not_come_to_its_configuration_has_none_of_an_earlier_one(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    log.write_text(ASKED % 8 + RUNS % "float16" + ASKED % 16)
    said = last_start(log)
    assert (arguments(said), config_word(said, "dtype")) == ({"max_num_seqs": 16}, None)


def test_a_log_is_never_held_as_a_whole_nor_is_a_line_of_it(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    with log.open("wb") as file:
        file.truncate(64 * LINE_BYTES_MAX)
        file.seek(0, 2)
        file.write(b"\n" + (ASKED % 16).encode())
    tracemalloc.start()
    try:
        said = heard.of_log(heard.log(log))
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert said["max_num_seqs"].value == 16 and most < 8 * LINE_BYTES_MAX


def test_a_log_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"nowhere\.log: the engine's log cannot be read"):
        heard.log(tmp_path / "nowhere.log")
