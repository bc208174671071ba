"""Short reads over HTTP, past whatever the proxy variables say: an engine or a server of ours lies behind no proxy."""

from __future__ import annotations

import urllib.request

direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
