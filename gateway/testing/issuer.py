"""An issuer of tokens: its private keys, its public key set, and tokens in any shape that a test wants.

Owns keys made anew in each process. Never used in production.
"""

from __future__ import annotations

import base64
import json
from functools import cache
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key as generate_rsa_key
from jwt.algorithms import get_default_algorithms

ISSUER = "https://issuer.example"
AUDIENCE = "gateway"
CLASS_CLAIM, TENANT_CLAIM, MODELS_CLAIM = "gw_class", "sub", "gw_models"
ALGORITHMS = ("RS256", "ES256", "EdDSA")
TOKEN_S = 600.0


@cache
def private_key(algorithm: str, name: str = "") -> Any:
    """Return the private key of an algorithm; another for each `name`."""
    match algorithm:
        case "RS256":
            return generate_rsa_key(65537, 2048)
        case "ES256":
            return generate_private_key(SECP256R1())
        case "EdDSA":
            return Ed25519PrivateKey.generate()
        case _:
            raise AssertionError(f"no issuer of ours signs with {algorithm} for {name}")


def public_jwk(algorithm: str, name: str | None = None, **members: Any) -> dict[str, Any]:
    """Return the public half of `private_key` as an entry of a key set, named like its algorithm unless it says."""
    key = private_key(algorithm, name or algorithm).public_key()
    jwk: dict[str, Any] = get_default_algorithms()[algorithm].to_jwk(key, as_dict=True)
    return {**jwk, "kid": name or algorithm, **members}


def key_set(*entries: dict[str, Any]) -> bytes:
    """Return a key set; without entries, the one of all three algorithms."""
    return json.dumps({"keys": list(entries) or [public_jwk(each) for each in ALGORITHMS]}).encode()


def claims(now: float, **changes: Any) -> dict[str, Any]:
    """Return what a valid token says; a change to `...` removes the claim."""
    whole = {
        "iss": ISSUER,
        "aud": AUDIENCE,
        "exp": now + TOKEN_S,
        CLASS_CLAIM: "interactive",
        TENANT_CLAIM: "acme",
        **changes,
    }
    return {name: value for name, value in whole.items() if value is not ...}


def token(said: dict[str, Any], algorithm: str = "RS256", name: str | None = None, **header: Any) -> str:
    """Return the claims, signed."""
    kid = name or algorithm
    return jwt.encode(said, private_key(algorithm, kid), algorithm, headers={"kid": kid, **header})


def signed(header: dict[str, Any] | bytes, payload: dict[str, Any] | bytes, algorithm: str = "EdDSA") -> str:
    """Return a token of any header and payload, also of bytes that are none, rightly signed."""
    signing_input = f"{encoded(header)}.{encoded(payload)}"
    signature = get_default_algorithms()[algorithm].sign(signing_input.encode(), private_key(algorithm, algorithm))
    return f"{signing_input}.{encoded(signature)}"


def encoded(value: Any) -> str:
    """Return one part of a token: bytes as they are, anything else as JSON."""
    raw = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()
