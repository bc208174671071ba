"""The calibration file that `engines[].calibration` of a gateway names: YAML, the keys as docs/bench.md lists them.

Owns the keys and how numbers are rounded. What is not known has no key.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import yaml

from bench.analysis.step_model import Estimate, StepModel
from bench.errors import UsageError

VERSION = 1
_DIGITS = 4


def contents(
    fitted: StepModel,
    *,
    model: str,
    engine_version: str | None,
    max_num_batched_tokens: int | None,
    requests: int,
    made_at: str,
) -> dict[str, Any]:
    said: dict[str, Any] = {"version": VERSION, "model": model, "made_at": made_at}
    if engine_version is not None:
        said["engine_version"] = engine_version
    if max_num_batched_tokens is not None:
        said["max_num_batched_tokens"] = max_num_batched_tokens
    said |= {name: _estimate(estimate) for name, estimate in fitted.terms.items()}
    said["error"] = {"median": _rounded(fitted.error_median), "p95": _rounded(fitted.error_p95)}
    said["requests"] = requests
    return said


def now_utc() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def write(path: Path, said: dict[str, Any]) -> None:
    """Raises UsageError where it cannot be written."""
    part = path.with_name(f".{path.name}.part")
    try:
        part.write_text(yaml.safe_dump(said, sort_keys=False), encoding="utf-8")
        part.replace(path)
    except OSError as error:
        raise UsageError(f"--out: {path} cannot be written ({error.strerror}). Give another.") from error


def _estimate(estimate: Estimate) -> dict[str, float]:
    return {"value": _rounded(estimate.value), "low": _rounded(estimate.low), "high": _rounded(estimate.high)}


def _rounded(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")
