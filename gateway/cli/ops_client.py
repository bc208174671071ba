"""What commands ask of a running gateway's ops port.

Owns the asking, and the words where nobody answers.
"""

from __future__ import annotations

import argparse
import http.client
import json
import sys
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

from gateway.strict_yaml import ConfigError

ANSWER_S_MAX = 5.0


class NotTheOpsPort(Exception):  # noqa: N818 - the state that it names
    """Something answers there, and not as the ops port does."""


def add_url(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--url", default="http://127.0.0.1:9090", metavar="OPS_URL", help="default: %(default)s")


def asking(url: str, act: Callable[[], int]) -> int:
    """Run what asks; return its exit status, or 1 where no gateway answers. Raises ConfigError for what is no URL."""
    if not url.startswith(("http://", "https://")):
        raise ConfigError("--url", "", "is no http:// or https:// address", "Give that of the ops port")
    try:
        return act()
    except (NotTheOpsPort, http.client.HTTPException, ValueError):
        said = "what answers there is not a gateway's ops port. Give its address with --url (`ops` in gateway.yaml)."
    except OSError as error:
        cause = error.reason if isinstance(error, urllib.error.URLError) else error
        said = f"{getattr(cause, 'strerror', None) or cause}. Is the gateway running there?"
    sys.stderr.write(f"error: no state from {url}: {said}\n")
    return 1


def state(url: str, *, promises: bool = True) -> Any:
    """Return `/api/state`, with what the plan promises or without."""
    status, said = get(url, "/api/state" if promises else "/api/state?promises=off")
    if status != 200:
        raise NotTheOpsPort
    return said


def get(url: str, path: str) -> tuple[int, Any]:
    """Return the status and the JSON object of an answer; what is not 200 has `error.message` and `error.fix`."""
    try:
        with urllib.request.urlopen(f"{url.rstrip('/')}{path}", timeout=ANSWER_S_MAX) as answer:  # noqa: S310 - http(s) alone
            status, said = answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            status, said = error.code, json.load(error)
    if not isinstance(said, dict) or (status != 200 and not _is_a_problem(said.get("error"))):
        raise NotTheOpsPort
    return status, said


def _is_a_problem(error: Any) -> bool:
    return isinstance(error, dict) and {"message", "fix"} <= error.keys()
