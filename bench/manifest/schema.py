"""A manifest as a model: everything that has to be as it was for a rollback to be one. No field may be unknown.

Owns what the file may say, and that its parts agree. Reads nothing.
"""

from __future__ import annotations

import hashlib
from typing import Annotated, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, JsonValue, model_validator

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Digest = Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")]
Words = Annotated[str, Field(min_length=1, max_length=1024)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,99}$")]
Url = Annotated[str, Field(pattern=r"^https?://[^/@?#\s]+$")]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1)]

# Who says a thing: an engine or a gateway that was asked, the draft, or the baseline that this is a change to.
Source = Literal["metrics", "models", "server_info", "version", "log", "ops", "file", "stated", "baseline"]


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


M = TypeVar("M", bound=Strict)


class Argument(Strict):
    """One argument in force. `from`: who says so."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    value: JsonValue
    source: Source = Field(alias="from")


class Engine(Strict):
    """One engine that the target's requests go to."""

    url: Url
    version: Words
    args: Annotated[dict[str, Argument], Field(min_length=1)]


class Model(Strict):
    name: Words
    revision: Words
    tokenizer_revision: Words


class Routing(Strict):
    """weights: of all engines of the pool, as gateway.yaml states them. target: those of them that this is about."""

    pool: Name
    weights: Annotated[dict[Name, NotNegative], Field(min_length=1)]
    target: Annotated[list[Name], Field(min_length=1)]


class HealthProbe(Strict):
    """An engine is well where a GET of this path brings 200 in time."""

    path: Annotated[str, Field(pattern=r"^/[!-~]*$")]
    within_s: Positive


class Capacity(Strict):
    """What the target carries. evidence: run ids, or what it is known from."""

    requests_per_s: Positive
    evidence: Words


class Abort(Strict):
    """When a canary is to be taken back. Shares are of offered requests; limits are by class, of first tokens' p95."""

    error_share_max: Share | None = None
    refused_share_max: Share | None = None
    ttft_p95_ms_max: dict[Name, Positive] = {}

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if self.error_share_max is None and self.refused_share_max is None and not self.ttft_p95_ms_max:
            raise ValueError("state error_share_max, refused_share_max or ttft_p95_ms_max")
        return self


class Policy(Strict):
    """text: of a policy file of the user's own; a shipped one comes with the gateway's version."""

    name: Words
    sha256: Sha256
    file: Words | None = None
    text: str | None = None

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if (self.file is None) != (self.text is None):
            raise ValueError("file and text: both, or neither")
        return _hashed(self, "text", self.text, self.sha256)


class Gateway(Strict):
    """file: its gateway.yaml, on the machine that it runs on; config: that file's text."""

    version: Words
    ops_url: Url
    file: Words
    config_sha256: Sha256
    config: Annotated[str, Field(min_length=1)]
    policy: Policy

    @model_validator(mode="after")
    def _whole(self) -> Self:
        return _hashed(self, "config", self.config, self.config_sha256)


class Manifest(Strict):
    """sources: of each field without a `from` of its own. baseline_sha256: of the manifest that this is a change to."""

    sha256: Sha256
    version: Annotated[int, Field(ge=1, le=1)]
    name: Name
    made_at: Words
    owner: Words
    baseline_sha256: Sha256 | None = None
    deployment_revision: Words
    image_digest: Digest
    model: Model
    engines: Annotated[dict[Name, Engine], Field(min_length=1)]
    prefix_caching: bool
    speculation: Words
    environment: dict[str, str] = {}
    routing: Routing
    health_probe: HealthProbe
    capacity: Capacity
    drain_deadline_s: Positive
    abort: Abort
    gateway: Gateway
    sources: dict[str, Source]

    @model_validator(mode="after")
    def _parts_agree(self) -> Self:
        if set(self.engines) != set(self.routing.target):
            raise ValueError("engines and routing.target name different engines")
        if strangers := set(self.routing.target) - set(self.routing.weights):
            raise ValueError(f"routing.target: {min(strangers)} is not in the pool")
        if idle := [name for name in self.routing.target if not self.routing.weights[name]]:
            raise ValueError(f"routing.target: {idle[0]} has the weight 0 in gateway.yaml: it gets no request")
        return self


def _hashed(model: M, name: str, text: str | None, sha256: str) -> M:
    if text is not None and hashlib.sha256(text.encode()).hexdigest() != sha256:
        raise ValueError(f"{name} is not what its sha256 says")
    return model
