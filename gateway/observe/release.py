"""Which release this is, and whether its core is compiled."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from gateway.core import admission

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

# Built by mypyc, the core's modules are not its `.py` files: docs/adr/0002-compiled-core.md.
CORE_IS_COMPILED = not admission.__file__.endswith(".py")
