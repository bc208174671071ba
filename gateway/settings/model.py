"""gateway.yaml as a model: every setting, its unit, its bounds and its default.

Owns what the file may say. Reads no policy and no key; holds no secret: an engine's key is looked up in the
environment when it is used.
"""

from __future__ import annotations

import os
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from gateway.core.types import EngineLimits, LengthClass
from gateway.settings import agreement
from gateway.settings.fields import (
    TOKENS_MAX,
    AutoCount,
    Bytes,
    ClaimName,
    Count,
    EngineField,
    EngineUrl,
    KeysUrl,
    ModelName,
    Port,
    Seconds,
    SecondsOrZero,
    is_loopback,
)
from gateway.strict_yaml import LocalPath, Name, Strict, problem


class Listen(Strict):
    """Where callers connect. Port 0: any free one."""

    host: str = Field(default="0.0.0.0", min_length=1)  # noqa: S104 - the public port; every request needs a key
    port: Port = 8080


class Ops(Strict):
    """Where metrics, health and status are served; meant for loopback or a private network.

    token_file: holds the bearer token that POST routes want; without it they are off beyond loopback.
    """

    host: str = Field(default="127.0.0.1", min_length=1)
    port: Port = 9090
    token_file: LocalPath | None = None

    @property
    def is_loopback(self) -> bool:
        return is_loopback(self.host)


class Anonymous(Strict):
    """Who a caller without any credential is taken for."""

    service_class: Name
    tenant: Name


class Jwt(Strict):
    """Whose signed tokens are believed, and which claims say who is calling.

    The issuer's public keys are in a file or behind an address. models_claim: of a list of models, the only ones that
    the token is for; null: any.
    """

    issuer: Annotated[str, Field(min_length=1, max_length=1024)]
    audience: Annotated[str, Field(min_length=1, max_length=1024)]
    jwks_file: LocalPath | None = None
    jwks_url: KeysUrl | None = None
    service_class_claim: ClaimName
    tenant_claim: ClaimName
    models_claim: ClaimName | None = None

    @model_validator(mode="after")
    def _has_keys(self) -> Self:
        if self.jwks_file is None and self.jwks_url is None:
            raise problem("has no signing keys", fix="Set jwks_file or jwks_url")
        if self.jwks_file is not None and self.jwks_url is not None:
            raise problem("is set beside jwks_file", fix="Keep one of the two", at="jwks_url")
        return self


class Auth(Strict):
    """Who is let in. keys_file, jwt or anonymous must be given."""

    keys_file: LocalPath | None = None
    jwt: Jwt | None = None
    anonymous: Anonymous | None = None

    @model_validator(mode="after")
    def _lets_somebody_in(self) -> Self:
        if self.keys_file is None and self.jwt is None and self.anonymous is None:
            raise problem(
                "lets nobody in", fix="Set keys_file (see `gateway keys new --help`), jwt, or anonymous for everybody"
            )
        return self


class Limits(Strict):
    """What one engine was started with. null: not stated, so nothing is held against it."""

    max_num_batched_tokens: Count | None = None
    long_prefill_token_threshold: Annotated[int, Field(ge=0, le=TOKENS_MAX)] | None = None
    max_num_seqs: Count | None = None
    kv_tokens: AutoCount = None

    def stated(self) -> EngineLimits:
        """The limits as admission takes them; what is `auto` is None until the engine is asked."""
        return EngineLimits(
            max_num_batched_tokens=self.max_num_batched_tokens,
            long_prefill_token_threshold=self.long_prefill_token_threshold,
            max_num_seqs=self.max_num_seqs,
            kv_tokens=self.kv_tokens,
        )


class Timeouts(Strict):
    """connect_s: to the engine's port. first_byte_s: from dispatch. idle_s: between two chunks of an answer."""

    connect_s: Seconds = 5
    first_byte_s: Seconds = 120
    idle_s: Seconds = 60


class Engine(Strict):
    """One vLLM server. calibration: how its step model begins: by probes, from a file, or from a default.

    weight: its share of its pool's requests, against the others' weights; where all are alike, load decides; 0: none.
    """

    name: Name
    url: EngineUrl
    pool: Name
    api_key_env: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,127}$")] | None = None
    scheduling: Literal["priority", "fcfs", "probe"] = "probe"
    priority_carrier: Literal["header", "body", "auto"] = "auto"
    calibration: Literal["probe", "off"] | LocalPath = "probe"
    weight: Annotated[float, Field(ge=0, le=1_000_000)] = 1
    limits: Limits = Limits()
    timeouts: Timeouts = Timeouts()

    def api_key(self) -> str | None:
        """The key to send upstream, from the environment; None where the engine wants none."""
        return None if self.api_key_env is None else os.environ[self.api_key_env]


class LocalTokenizer(Strict):
    """The served model's tokenizer.json and chat template, in a folder."""

    kind: Literal["local"]
    path: LocalPath
    revision: Annotated[str, Field(min_length=1, max_length=128)] | None = None


class EngineTokenizer(Strict):
    """The engine's own /tokenize: exact, one round trip for each request."""

    kind: Literal["engine"] = "engine"


class EstimateTokenizer(Strict):
    """From the number of bytes: cheap and rough."""

    kind: Literal["estimate"]


Tokenizer = Annotated[LocalTokenizer | EngineTokenizer | EstimateTokenizer, Field(discriminator="kind")]


class Pool(Strict):
    """Engines that serve the same models in the same data region.

    length_class: the prompts that it serves, by the policy's length_classes; another pool serves the other ones of each
    model. null: all.
    """

    models: Annotated[tuple[ModelName, ...], Field(min_length=1, max_length=1000)]
    length_class: LengthClass | None = None
    region: Name | None = None
    max_model_len: AutoCount = None
    tokenizer: Tokenizer = EngineTokenizer()


class ServerLimits(Strict):
    """Bounds of the public port. keepalive_s 0: a connection serves one request."""

    body_bytes_max: Bytes = 33_554_432
    inflated_bytes_max: Bytes = 67_108_864
    header_bytes_max: Annotated[int, Field(ge=1024, le=1 << 20)] = 32_768
    connections_max: Annotated[int, Field(ge=1, le=1_000_000)] = 10_000
    body_read_s: Seconds = 30
    client_stall_s: Seconds = 60
    keepalive_s: SecondsOrZero = 75


class EngineFields(Strict):
    """Engine-internal body fields that callers may set; without this they are refused."""

    allow: frozenset[EngineField] = frozenset()


class Drain(Strict):
    """After SIGTERM, both counted from the signal: normal service for settle_s; what is under way has deadline_s.

    settle_s lies inside deadline_s; unstated, it is cut to it.
    """

    settle_s: SecondsOrZero = 5
    deadline_s: SecondsOrZero = 30


class Settings(Strict):
    """The whole of gateway.yaml. shadow: a policy that decides beside `policy` and is only counted.

    tracing: spans to an OpenTelemetry collector, which the standard OTEL_* environment variables name.
    """

    listen: Listen = Listen()
    ops: Ops = Ops()
    policy: str = "short-first"
    shadow: str | None = None
    auth: Auth = Field(examples=[{"keys_file": "keys.yaml"}])
    engines: Annotated[tuple[Engine, ...], Field(min_length=1, max_length=1000)]
    pools: Annotated[dict[Name, Pool], Field(min_length=1, max_length=1000)]
    limits: ServerLimits = ServerLimits()
    engine_fields: EngineFields = EngineFields()
    drain: Drain = Drain()
    tracing: bool = False

    @model_validator(mode="after")
    def _parts_agree(self) -> Self:
        agreement.check(self)
        return self

    def engines_of(self, pool: str) -> tuple[Engine, ...]:
        return tuple(engine for engine in self.engines if engine.pool == pool)
