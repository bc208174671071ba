import json
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP384R1, generate_private_key
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key as generate_rsa_key
from hypothesis import given
from hypothesis import strategies as st
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

from gateway.identity.signing_keys import (
    KEY_SET_BYTES_MAX,
    KEYS_MAX,
    KeySetUnusable,
    load_key_set,
    read_key_set,
)
from gateway.strict_yaml import ConfigError
from gateway.testing import issuer
from gateway.testing.issuer import public_jwk

RSA = public_jwk("RS256")
SHORT = generate_rsa_key(65537, 1024)  # noqa: S505 - made to be refused
SHORT_RSA = {**RSAAlgorithm.to_jwk(SHORT.public_key(), as_dict=True), "kid": "short"}
P_384 = {**ECAlgorithm.to_jwk(generate_private_key(SECP384R1()).public_key(), as_dict=True), "kid": "p384"}


def problem_of(raw: bytes) -> str:
    with pytest.raises(KeySetUnusable) as caught:
        read_key_set(raw)
    return caught.value.problem


def test_a_key_set_gives_each_key_its_algorithm() -> None:
    found = read_key_set(issuer.key_set())
    assert {name: key.algorithm_name for name, key in found.keys.items()} == {
        "RS256": "RS256",
        "ES256": "ES256",
        "EdDSA": "EdDSA",
    }
    assert found.passed_over == ()


def test_a_key_that_says_its_use_and_its_algorithm_is_taken() -> None:
    entry = public_jwk("ES256", use="sig", alg="ES256", key_ops=["verify"], x5t="anything")
    assert list(read_key_set(issuer.key_set(entry)).keys) == ["ES256"]


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        (7, "is not a JSON object"),
        ({"kty": "oct", "kid": "s", "k": "c2VjcmV0LXNlY3JldA"}, "is a private or a shared key"),
        ({"kty": "oct", "kid": "s"}, "is for another algorithm"),
        ({**RSAAlgorithm.to_jwk(issuer.private_key("RS256", "p"), as_dict=True), "kid": "p"}, "is a private"),
        ({**OKPAlgorithm.to_jwk(issuer.private_key("EdDSA", "p"), as_dict=True), "kid": "p"}, "is a private"),
        ({**RSA, "kid": "x", "alg": "PS256"}, "is for another algorithm"),
        ({**RSA, "kid": "x", "alg": "HS256"}, "is for another algorithm"),
        ({**RSA, "kid": "x", "alg": "none"}, "is for another algorithm"),
        ({**RSA, "kid": "x", "alg": None}, "is for another algorithm"),
        ({**RSA, "kid": "x", "kty": ["RSA"]}, "is for another algorithm"),
        (P_384, "is for another algorithm"),
        ({**RSA, "kid": "x", "use": "enc"}, "is not for checking signatures"),
        ({**RSA, "kid": "x", "key_ops": ["encrypt"]}, "is not for checking signatures"),
        ({**RSA, "kid": ...}, "has no kid"),
        ({**RSA, "kid": ""}, "has no kid"),
        ({**RSA, "kid": 7}, "has no kid"),
        ({**RSA, "kid": "a\nb"}, "has no kid"),
        ({**RSA, "kid": "x", "n": ...}, "is not a whole key"),
        ({**RSA, "kid": "x", "n": 7}, "is not a whole key"),
        ({**RSA, "kid": "x", "n": "!"}, "is not a whole key"),
        ({**public_jwk("ES256"), "kid": "x", "x": "AAAA"}, "is not a whole key"),
        (SHORT_RSA, "has 1024 bits; 2048 to 8192 are accepted"),
    ],
)
def test_a_key_that_cannot_be_used_is_passed_over_and_the_others_are_not(entry: Any, why: str) -> None:
    if isinstance(entry, dict):
        entry = {name: value for name, value in entry.items() if value is not ...}
    found = read_key_set(issuer.key_set(entry, public_jwk("EdDSA")))
    assert list(found.keys) == ["EdDSA"]
    assert len(found.passed_over) == 1
    assert found.passed_over[0].startswith(f"keys[0] {why}")
    assert problem_of(issuer.key_set(entry)).startswith(f"has no key that can be used: keys[0] {why}")


@pytest.mark.parametrize(
    ("raw", "problem"),
    [
        (b"", "is not one JSON object"),
        (b"[]", "is not one JSON object"),
        (b'{"keys": [], "keys": []}', "is not one JSON object"),
        (b"{}", "has no list of keys"),
        (b'{"keys": {}}', "has no list of keys"),
        (b'{"keys": []}', "has no list of keys"),
        (json.dumps({"keys": [7] * (KEYS_MAX + 1)}).encode(), f"has more than {KEYS_MAX} keys"),
        (b" " * (KEY_SET_BYTES_MAX + 1), f"is larger than {KEY_SET_BYTES_MAX} bytes"),
        (issuer.key_set(RSA, {**public_jwk("ES256"), "kid": RSA["kid"]}), "has the kid of keys[1] twice"),
    ],
)
def test_a_set_that_leaves_doubt_is_refused_whole(raw: bytes, problem: str) -> None:
    assert problem_of(raw) == problem


def test_a_faulty_file_is_named_and_no_key_is_shown(tmp_path: Path) -> None:
    file = tmp_path / "jwks.json"
    file.write_bytes(issuer.key_set(SHORT_RSA))
    with pytest.raises(ConfigError) as caught:
        load_key_set(file)
    assert str(caught.value).startswith(f"{file}: has no key that can be used: keys[0] has 1024 bits")
    assert SHORT_RSA["n"] not in str(caught.value)
    with pytest.raises(ConfigError, match="does not exist"):
        load_key_set(tmp_path / "gone.json")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
MEMBER = st.sampled_from(["kty", "crv", "kid", "alg", "use", "key_ops", "n", "e", "x", "y"])


@given(algorithm=st.sampled_from(issuer.ALGORITHMS), changes=st.dictionaries(MEMBER, JSON, max_size=3))
def test_whatever_a_key_says_it_is_taken_or_passed_over(algorithm: str, changes: dict[str, Any]) -> None:
    entry = {**public_jwk(algorithm), **changes}
    try:
        found = read_key_set(issuer.key_set(entry))
    except KeySetUnusable:
        return
    assert list(found.keys) == [entry["kid"]]
