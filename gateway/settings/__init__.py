"""gateway.yaml: what the gateway is told about its ports, callers, engines and pools.

Owns the settings as frozen, checked values. Knows no policy: that is gateway.policy's.
"""

from gateway.settings.loading import load
from gateway.settings.model import (
    Anonymous,
    Auth,
    Drain,
    Engine,
    EngineFields,
    EngineTokenizer,
    EstimateTokenizer,
    Jwt,
    Limits,
    Listen,
    LocalTokenizer,
    Ops,
    Pool,
    ServerLimits,
    Settings,
    Timeouts,
    Tokenizer,
)

__all__ = [
    "Anonymous",
    "Auth",
    "Drain",
    "Engine",
    "EngineFields",
    "EngineTokenizer",
    "EstimateTokenizer",
    "Jwt",
    "Limits",
    "Listen",
    "LocalTokenizer",
    "Ops",
    "Pool",
    "ServerLimits",
    "Settings",
    "Timeouts",
    "Tokenizer",
    "load",
]
