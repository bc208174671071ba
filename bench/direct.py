"""Short reads over HTTP, past whatever the proxy variables say: an engine or a server of ours lies behind no proxy."""

from __future__ import annotations

import http.client
import json
import urllib.request
from typing import Any

direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
ASK_S_MAX = 10.0


def page(url: str, token: str | None = None) -> str | None:
    """Return a page's text; None where it is none, or breaks off. token: sent as a bearer's."""
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    try:
        with direct.open(urllib.request.Request(url, headers=headers), timeout=ASK_S_MAX) as answer:  # noqa: S310 - as stated
            body: bytes = answer.read()
    except (OSError, http.client.HTTPException):
        return None
    return body.decode("utf-8", errors="replace")


def page_object(url: str, token: str | None = None) -> dict[str, Any]:
    """Return a page's JSON object; empty where there is none."""
    try:
        said = json.loads(page(url, token) or "")
    except ValueError:
        return {}
    return said if isinstance(said, dict) else {}
