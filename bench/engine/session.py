"""The session that an engine's own pages are read with. Sends no load: that is `bench.load`."""

from __future__ import annotations

import aiohttp

CONNECT_S_MAX = 10.0


def open_session() -> aiohttp.ClientSession:
    """One without the library's hidden limits, cookies and proxies."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, force_close=True),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S_MAX, sock_read=None),
        cookie_jar=aiohttp.DummyCookieJar(),
        trust_env=False,
    )
