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
_direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # an ops port lies behind no proxy


def add_url(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--url", default="http://127.0.0.1:9090", metavar="OPS_URL", help="default: %(default)s")


def asking(url: str, act: Callable[[], int]) -> int:
    """Run what asks; return its exit status, or 1 where no gateway answers. Raises ConfigError for what is no URL."""
    if not url.startswith(("http://", "https://")):
        raise ConfigError("--url", "", "is no http:// or https:// address", "Give that of the ops port")
    try:
        return act()
    except (OSError, http.client.HTTPException, ValueError) as error:
        sys.stderr.write(f"error: no state from {url}: {error}. Is the gateway running there?\n")
        return 1


def get(url: str, path: str) -> tuple[int, Any]:
    """Return the status and the JSON value of an answer."""
    try:
        with _direct.open(f"{url.rstrip('/')}{path}", timeout=ANSWER_S_MAX) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)
