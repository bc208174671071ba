"""Which release this is."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

_DISTRIBUTION = "vllm-admission-gateway"
_FROM_SOURCE = "source"


def _release() -> str:
    try:
        return version(_DISTRIBUTION)
    except PackageNotFoundError:
        return _FROM_SOURCE


# The installed distribution's version, or "source" where the code runs without being installed. Found out once, at the
# start: it means looking at files.
RELEASE = _release()
