"""The models of a caller: which pools serve one, and the answers to GET /v1/models and /v1/models/{id}.

Owns the selection: a caller sees the models that the configuration serves and its key allows, each card as its engine
wrote it but for paths on the engine's disk. Takes no engine time and waits in no line.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from gateway.core.types import Identity, Reason, Refusal
from gateway.engines.pool import ModelPools, Pools
from gateway.server.refusing import Refusing

_NAME_SHOWN_CHARACTERS_MAX = 256


def answer(pools: Pools, identity: Identity, model: str | None) -> bytes:
    """Return the body of GET /v1/models/{id}, or of GET /v1/models where no model is named. Raises Refusing."""
    return _listing(pools, identity) if model is None else _single(pools, identity, model)


def _listing(pools: Pools, identity: Identity) -> bytes:
    cards = [pools.card(model) for model in pools.models() if _allowed(model, identity)]
    return _dumps({"object": "list", "data": [card for card in cards if card is not None]})


def _single(pools: Pools, identity: Identity, model: str) -> bytes:
    if pools.of_model(model) is None or not _allowed(model, identity):
        raise Refusing(_unknown_model(model))
    card = pools.card(model)
    if card is None:
        raise Refusing(Refusal(Reason.NO_ENGINE, "No engine that serves this model has answered yet."))
    return _dumps(card)


def pools_of(pools: Pools, identity: Identity, model: str) -> ModelPools:
    """Return the pools that serve the caller this model. Raises Refusing."""
    those = pools.of_model(model)
    if those is None:
        raise Refusing(_unknown_model(model))
    if not _allowed(model, identity):
        raise Refusing(_not_allowed(model))
    return those


def _unknown_model(model: str) -> Refusal:
    shown = model[:_NAME_SHOWN_CHARACTERS_MAX]
    return Refusal(Reason.UNKNOWN_MODEL, f"The model `{shown}` does not exist.", param="model")


def _not_allowed(model: str) -> Refusal:
    return Refusal(Reason.NOT_ALLOWED, f"This key may not use the model `{model}`.", param="model")


def _allowed(model: str, identity: Identity) -> bool:
    return identity.models is None or model in identity.models


def _dumps(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
