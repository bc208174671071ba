import asyncio
import base64
import hashlib
import hmac
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.types import Identity, Reason
from gateway.identity.callers import identify
from gateway.identity.credentials import CREDENTIAL_CHARS_MAX, CredentialRefused
from gateway.identity.keyring import Keyring
from gateway.identity.signing_keys import read_key_set
from gateway.identity.tokens import LEEWAY_S, SignerUnknown, TokenRules, Tokens
from gateway.testing import issuer
from gateway.testing.issuer import ALGORITHMS, claims, encoded, key_set, public_jwk, signed, token

NOW = 1_900_000_000.0
RULES = TokenRules(issuer.ISSUER, issuer.AUDIENCE, issuer.CLASS_CLAIM, issuer.TENANT_CLAIM)


async def never() -> bool:
    return False


def tokens(rules: TokenRules = RULES, raw: bytes | None = None) -> Tokens:
    made = Tokens(rules, never)
    made.put_in_force(read_key_set(raw or key_set()))
    return made


def refusal_of(presented: str, judge: Tokens | None = None, now: float = NOW) -> tuple[Reason, str]:
    with pytest.raises(CredentialRefused) as caught:
        (judge or tokens()).judge(presented, now)
    refusal = caught.value.refusal
    assert not any(len(part) > 12 and part in refusal.message for part in presented.split("."))
    return refusal.reason, refusal.message


def is_refused(presented: str, judge: Tokens | None = None, now: float = NOW) -> bool:
    return refusal_of(presented, judge, now)[0] is Reason.UNAUTHENTICATED


HEADER = {"alg": "EdDSA", "kid": "EdDSA"}


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_token_says_who_is_calling(algorithm: str) -> None:
    found = tokens().judge(token(claims(NOW), algorithm), NOW)
    assert (found.service_class, found.tenant, found.models) == ("interactive", "acme", None)


def test_the_key_id_of_the_log_tells_subjects_and_keys_apart_and_shows_neither() -> None:
    judged = [
        tokens().judge(token(claims(NOW, sub=subject), algorithm), NOW).key_id
        for subject, algorithm in (("ann", "RS256"), ("ann", "ES256"), ("bob", "RS256"))
    ]
    assert len(set(judged)) == 3
    assert judged[0] == f"jwt-{hashlib.sha256(b'RS256' + bytes([10]) + b'ann').hexdigest()[:12]}"


def test_an_audience_among_others_is_enough() -> None:
    assert tokens().judge(token(claims(NOW, aud=["other", issuer.AUDIENCE])), NOW).tenant == "acme"


# ── what a token lacks or says wrongly ──


@pytest.mark.parametrize(
    "changes",
    [
        {"exp": ...},
        {"exp": None},
        {"exp": "never"},
        {"exp": True},
        {"exp": [NOW + 60]},
        {"exp": NOW - LEEWAY_S},
        {"exp": -1},
        {"nbf": NOW + LEEWAY_S + 1},
        {"nbf": "now"},
        {"nbf": None},
        {"nbf": True},
        {"iss": ...},
        {"iss": "https://issuer.example/"},
        {"iss": ["https://issuer.example"]},
        {"iss": None},
        {"aud": ...},
        {"aud": None},
        {"aud": ""},
        {"aud": []},
        {"aud": "gateway2"},
        {"aud": {"gateway": 1}},
        {"aud": [issuer.AUDIENCE, 7]},
        {"sub": ...},
        {"sub": 7},
        {"sub": None},
        {"sub": ""},
        {"sub": "a\nb"},
        {"sub": "株式会社"},
        {"sub": "a" * 256},
        {"jti": 7},
    ],
)  # fmt: skip
def test_a_token_with_a_claim_missing_or_wrong_is_unauthenticated(changes: dict[str, Any]) -> None:
    signed_token = signed(HEADER, claims(NOW, **changes))
    assert is_refused(signed_token)


def test_a_tenant_claim_that_is_no_text_is_unauthenticated() -> None:
    rules = TokenRules(issuer.ISSUER, issuer.AUDIENCE, issuer.CLASS_CLAIM, "org")
    for org in (7, None, ["acme"], {"id": "acme"}, True, ...):
        assert is_refused(token(claims(NOW, org=org)), tokens(rules))
    assert tokens(rules).judge(token(claims(NOW, org="acme corp")), NOW).tenant == "acme corp"


@pytest.mark.parametrize("service_class", [..., None, 7, True, ["interactive"], {"name": "interactive"}])
def test_a_token_without_a_class_is_known_and_not_allowed(service_class: Any) -> None:
    reason, message = refusal_of(token(claims(NOW, **{issuer.CLASS_CLAIM: service_class})))
    assert reason is Reason.NOT_ALLOWED
    assert issuer.CLASS_CLAIM in message


def test_a_token_ends_and_begins_with_the_stated_leeway_and_not_later() -> None:
    presented = token(claims(NOW, exp=NOW, nbf=NOW - 60))
    assert tokens().judge(presented, NOW + LEEWAY_S - 0.5).tenant == "acme"
    assert "expired" in refusal_of(presented, now=NOW + LEEWAY_S)[1]
    assert tokens().judge(presented, NOW - 60 - LEEWAY_S).tenant == "acme"
    assert "not valid yet" in refusal_of(presented, now=NOW - 60 - LEEWAY_S - 0.5)[1]


def test_models_come_from_their_claim_where_one_is_configured() -> None:
    judge = tokens(TokenRules(issuer.ISSUER, issuer.AUDIENCE, issuer.CLASS_CLAIM, "sub", issuer.MODELS_CLAIM))

    def models(claim: Any) -> frozenset[str] | None:
        return judge.judge(token(claims(NOW, **{issuer.MODELS_CLAIM: claim})), NOW).models

    assert models(["a", "b"]) == {"a", "b"}
    for nothing in (..., None, "a", ["a", 7], {"a": 1}, ["a"] * 1001, []):
        assert models(nothing) == frozenset()
    assert tokens().judge(token(claims(NOW, **{issuer.MODELS_CLAIM: ["a"]})), NOW).models is None


# ── algorithms, keys and headers that an attacker chooses ──


def test_the_algorithm_is_the_keys_and_never_the_tokens() -> None:
    for algorithm in ALGORITHMS:
        for other in ("RS256", "ES256", "EdDSA", "RS384", "PS256", "ES384", "HS256", "none", "None", "", None, 7, []):
            if other != algorithm:
                assert is_refused(signed({"alg": other, "kid": algorithm}, claims(NOW), algorithm))
    assert is_refused(signed({"kid": "EdDSA"}, claims(NOW)))


def test_a_public_key_is_no_shared_secret() -> None:
    """An HS256 token whose secret is the issuer's public key, in each form in which it may lie about."""
    public = issuer.private_key("RS256", "RS256").public_key()
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    secrets = [
        public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo),
        public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo),
        json.dumps(public_jwk("RS256")).encode(),
        base64.urlsafe_b64decode(public_jwk("RS256")["n"] + "=="),
        b"",
    ]
    for secret in secrets:
        signing_input = f"{encoded({'alg': 'HS256', 'kid': 'RS256'})}.{encoded(claims(NOW))}"
        signature = hmac.new(secret, signing_input.encode(), hashlib.sha256).digest()
        assert is_refused(f"{signing_input}.{encoded(signature)}")


@pytest.mark.parametrize("signature", ["", "AA", encoded(bytes(64)), encoded(bytes(256))])
@pytest.mark.parametrize("algorithm", ["none", "None", "NONE", "EdDSA", "ES256", "RS256"])
def test_an_unsigned_token_is_unauthenticated(algorithm: str, signature: str) -> None:
    for name in ALGORITHMS:
        assert is_refused(f"{encoded({'alg': algorithm, 'kid': name})}.{encoded(claims(NOW))}.{signature}")


def test_a_key_inside_a_token_or_behind_an_address_in_it_is_never_used() -> None:
    own = public_jwk("RS256", "attacker")
    for header in ({"jwk": own}, {"jku": "http://127.0.0.1:9/"}, {"x5u": "http://127.0.0.1:9/"}, {"x5c": ["AAAA"]}):
        assert is_refused(token(claims(NOW), "RS256", "attacker", **header))
        assert is_refused(token(claims(NOW), "RS256", "attacker", **{**header, "kid": "RS256"}))
        assert tokens().judge(token(claims(NOW), **header), NOW).tenant == "acme"


@pytest.mark.parametrize(
    "kid", [..., None, 7, ["RS256"], "", "rs256", "RS256 ", "../../dev/null", "' or 1=1", "x" * 5000]
)
def test_a_token_names_its_key_exactly(kid: Any) -> None:
    header = {name: value for name, value in {"alg": "EdDSA", "kid": kid}.items() if value is not ...}
    assert is_refused(signed(header, claims(NOW)))


@pytest.mark.parametrize(
    "members",
    [{"crit": ["exp"]}, {"crit": []}, {"crit": None}, {"b64": False}, {"b64": False, "crit": ["b64"]}, {"b64": True}],
)
def test_a_critical_extension_is_refused(members: dict[str, Any]) -> None:
    assert is_refused(signed({**HEADER, **members}, claims(NOW)))


@pytest.mark.parametrize(
    ("header", "payload"),
    [
        (b'{"alg": "none", "alg": "EdDSA", "kid": "EdDSA"}', claims(NOW)),
        (b'{"alg": "EdDSA", "kid": "RS256", "kid": "EdDSA"}', claims(NOW)),
        (HEADER, json.dumps(claims(NOW)).encode()[:-1] + b', "gw_class": "batch"}'),
        (HEADER, json.dumps(claims(NOW)).encode()[:-1] + b', "exp": 9007199254740993000000}'),
        (HEADER, json.dumps(claims(NOW)).encode()[:-1] + b', "x": NaN}'),
        (HEADER, json.dumps(claims(NOW)).encode()[:-1] + b', "x": "\\ud800"}'),
        (HEADER, b"\xef\xbb\xbf" + json.dumps(claims(NOW)).encode()),
        (HEADER, json.dumps(claims(NOW)).encode("utf-16")),
        (HEADER, b"[]"),
        (HEADER, b""),
        (b"7", claims(NOW)),
        (HEADER, b"[" * 3000),
    ],
)
def test_a_token_that_could_be_read_in_two_ways_is_refused_though_rightly_signed(header: Any, payload: Any) -> None:
    assert is_refused(signed(header, payload))


def test_a_changed_token_is_refused() -> None:
    whole = token(claims(NOW), "ES256")
    head, payload, signature = whole.split(".")
    other = encoded(claims(NOW, gw_class="batch"))
    for changed in (
        f"{head}.{other}.{signature}",
        f"{head}.{payload}.{signature[:-4]}",
        f"{head}.{payload}.{signature}.{signature}",
        f"{head}.{payload}",
        f"{head}..{signature}",
        f"{whole}=",
        f" {whole}",
        f"{whole}\n",
        whole.swapcase(),
    ):
        assert is_refused(changed)


# ── which keys are in force ──


def test_without_signing_keys_nobody_is_let_in() -> None:
    judge = Tokens(RULES, never)
    assert "no signing keys" in refusal_of(token(claims(NOW)), judge)[1]


def test_keys_that_are_too_old_are_believed_no_more() -> None:
    judge = Tokens(RULES, never)
    judge.put_in_force(read_key_set(key_set()), believed_until=NOW)
    assert judge.judge(token(claims(NOW)), NOW - 0.001).tenant == "acme"
    assert "no signing keys" in refusal_of(token(claims(NOW)), judge)[1]


async def test_a_key_that_came_with_the_second_look_is_believed_at_once() -> None:
    looks = []

    async def look_again() -> bool:
        looks.append(1)
        judge.put_in_force(read_key_set(key_set(public_jwk("ES256", "new"))))
        return True

    judge = Tokens(RULES, look_again)
    judge.put_in_force(read_key_set(key_set()))
    rolled = token(claims(NOW), "ES256", "new")
    assert (await judge.identify(rolled, lambda: NOW)).tenant == "acme"
    assert (await judge.identify(rolled, lambda: NOW)).tenant == "acme"
    assert len(looks) == 1
    with pytest.raises(SignerUnknown):
        await judge.identify(token(claims(NOW), "RS256"), lambda: NOW)


async def test_only_an_unknown_key_is_worth_a_second_look() -> None:
    async def look_again() -> bool:
        raise AssertionError

    judge = Tokens(RULES, look_again)
    judge.put_in_force(read_key_set(key_set()))
    for presented in (token(claims(NOW, exp=1)), token(claims(NOW))[:-2] + "AA", "a.b.c"):
        with pytest.raises(CredentialRefused):
            await judge.identify(presented, lambda: NOW)


# ── beside keys ──

ANONYMOUS = Identity("anonymous", "batch", "anonymous")


def identified(credential: str, judge: Tokens | None) -> Identity:
    found = identify(
        [f"Bearer {credential}"],
        [],
        keyring=Keyring((), ANONYMOUS),
        tokens=judge,
        service_classes=("interactive", "batch"),
        now=lambda: NOW,
    )
    return asyncio.run(found)


def test_a_token_is_let_in_only_where_an_issuer_is_configured() -> None:
    assert identified(token(claims(NOW)), tokens()).tenant == "acme"
    with pytest.raises(CredentialRefused, match="This API key is not known"):
        identified(token(claims(NOW)), None)


def test_a_class_that_the_policy_lacks_is_not_allowed() -> None:
    with pytest.raises(CredentialRefused) as caught:
        identified(token(claims(NOW, gw_class="gold")), tokens())
    assert (caught.value.refusal.reason, caught.value.refusal.code) == (Reason.NOT_ALLOWED, "service_class_not_allowed")


def test_a_token_over_the_bound_is_not_read() -> None:
    with pytest.raises(CredentialRefused, match="not known"):
        identified(token(claims(NOW, pad="x" * CREDENTIAL_CHARS_MAX)), tokens())


PIECE = st.text("ABCabc019_-=.{}\x00é\udcff", max_size=40) | st.binary(max_size=60).map(encoded)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
CLAIM = st.sampled_from(["exp", "nbf", "iat", "iss", "aud", "sub", "jti", "gw_class", "gw_models"])
NAME = st.sampled_from(["alg", "kid", "typ", "cty", "crit", "b64", "zip", "jwk", "x5u"])


@given(pieces=st.lists(PIECE, min_size=1, max_size=4))
def test_no_text_is_anything_but_an_identity_or_a_refusal(pieces: list[str]) -> None:
    with pytest.raises(CredentialRefused):
        identified(".".join(pieces), tokens())


@given(
    header=st.dictionaries(NAME, JSON, max_size=2),
    changes=st.dictionaries(CLAIM, JSON, max_size=2),
    algorithm=st.sampled_from(ALGORITHMS),
)
def test_whatever_a_signed_token_says_it_is_let_in_or_refused(
    header: dict[str, Any], changes: dict[str, Any], algorithm: str
) -> None:
    presented = signed({"alg": algorithm, "kid": algorithm, **header}, claims(NOW, **changes), algorithm)
    try:
        found = identified(presented, tokens())
    except CredentialRefused:
        return
    assert found.service_class == changes.get("gw_class", "interactive")
