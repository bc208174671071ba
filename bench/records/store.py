"""The folder of one run: run.json, requests.jsonl, measurements.json, verdict.json, vllm_bench.json.

Owns names and layout. The folder of one run is never written twice.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.errors import UsageError
from bench.records.request import RequestRecord

DRILLS_FILE = "faults.json"
ROLLBACK_FILE = "rollback.json"
ENGINE_FILE = "engine.jsonl"  # the engine's metrics over the time of the run, where they were read
LAST_FILE = "vllm_bench.json"  # what is written last: a folder with it holds a whole run


class RunFolder:
    """`result_dir/run_id`, made at once, so that a folder that cannot be written is known before the load.

    again: it is there already, because what it belongs to goes on.
    """

    def __init__(self, result_dir: Path, run_id: str, *, again: bool = False) -> None:
        self.path = result_dir / run_id
        try:
            self.path.mkdir(parents=True, exist_ok=again)
        except OSError as error:
            raise UsageError(f"{self.path}: cannot be made ({error.strerror}). Choose another --result-dir.") from error

    def write_json(self, name: str, value: Mapping[str, Any]) -> None:
        self._write(name, json.dumps(value, indent=2, allow_nan=False) + "\n")

    def write_requests(self, records: Sequence[RequestRecord]) -> None:
        self.write_lines("requests.jsonl", [each.to_row() for each in records])

    def write_lines(self, name: str, rows: Iterable[Mapping[str, Any]]) -> None:
        self._write(name, "".join(json.dumps(row, allow_nan=False) + "\n" for row in rows))

    def discard(self) -> None:
        """Take an empty folder away again: the run was never begun."""
        self.path.rmdir()

    def _write(self, name: str, text: str) -> None:
        # Written beside and renamed: a reader never meets half a file.
        part = self.path / f".{name}.part"
        part.write_text(text, encoding="utf-8")
        part.replace(self.path / name)
