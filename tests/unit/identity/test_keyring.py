import asyncio
import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.types import Identity, Reason
from gateway.identity.callers import identify
from gateway.identity.credentials import CREDENTIAL_CHARS_MAX, CredentialRefused
from gateway.identity.keyring import KEY_CHARS_MAX, Keyring, tenants
from gateway.identity.keys import KeyEntry

KEY, OTHER, EXPIRING = "gw-first-made-up-key", "gw-other-made-up-key", "gw-expiring-made-up-key"
NOT_AFTER = 1_896_048_000
ANONYMOUS = Identity(key_id="anonymous", service_class="batch", tenant="anonymous")


def an_entry(key: str, key_id: str, **members: object) -> KeyEntry:
    sha256 = hashlib.sha256(key.encode()).hexdigest()
    return KeyEntry.model_validate(
        {"id": key_id, "sha256": sha256, "service_class": "interactive", "tenant": "acme", **members}
    )


ENTRIES = (
    an_entry(KEY, "k1"),
    an_entry(OTHER, "k2", tenant="other", models=frozenset({"m"})),
    an_entry(EXPIRING, "k3", not_after="2030-01-31T00:00:00Z"),
)
CLOSED = Keyring(ENTRIES, anonymous=None)
OPEN = Keyring(ENTRIES, anonymous=ANONYMOUS)


def identified(ring: Keyring, authorization: list[str], x_api_key: list[str], now: float = 0.0) -> Identity:
    found = identify(
        authorization, x_api_key, keyring=ring, tokens=None, service_classes=("interactive", "batch"), now=lambda: now
    )
    return asyncio.run(found)


def refusal_of(ring: Keyring, authorization: list[str], x_api_key: list[str], now: float = 0.0) -> str:
    with pytest.raises(CredentialRefused) as caught:
        identified(ring, authorization, x_api_key, now)
    assert caught.value.refusal.reason is Reason.UNAUTHENTICATED
    return caught.value.refusal.message


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER", "bEaReR"])
def test_a_bearer_key_is_known_in_any_case_of_the_scheme(scheme: str) -> None:
    assert identified(CLOSED, [f"{scheme} {KEY}"], [], 0.0) == Identity("k1", "interactive", "acme", None)


def test_an_api_key_header_is_known() -> None:
    assert identified(CLOSED, [], [OTHER], 0.0) == Identity("k2", "interactive", "other", frozenset({"m"}))


def test_both_headers_may_hold_the_same_key() -> None:
    assert identified(CLOSED, [f"Bearer {KEY}"], [KEY], 0.0).key_id == "k1"


@pytest.mark.parametrize("ring", [CLOSED, OPEN])
@pytest.mark.parametrize(
    ("authorization", "x_api_key"),
    [
        ([f"Bearer {KEY}"], [OTHER]),
        ([f"Bearer {KEY}"], [""]),
        ([f"Bearer {KEY}", f"Bearer {KEY}"], []),
        ([], [KEY, KEY]),
        ([f"Basic {KEY}"], []),
        ([f"Basic {KEY}"], [KEY]),
        ([KEY], []),
        ([""], []),
        (["Bearer"], []),
        (["Bearer "], []),
        ([], [""]),
        ([], ["  "]),
        ([f"Bearer {KEY[:-1]}"], []),
        ([f"Bearer {KEY}x"], []),
        ([f"Bearer {KEY.upper()}"], []),
        ([f"Bearer {KEY}, Bearer {KEY}"], []),
        ([f"Bearer {KEY}\x00"], []),
        (["Bearer ключ"], []),
        (["Bearer \udcff\udc80"], []),
        (["Bearer " + "x" * 1_000_000], []),
        ([f"Bearer {hashlib.sha256(KEY.encode()).hexdigest()}"], []),
    ],
)
def test_whatever_is_presented_and_not_known_is_refused_also_where_anonymous_is_let_in(
    ring: Keyring, authorization: list[str], x_api_key: list[str]
) -> None:
    message = refusal_of(ring, authorization, x_api_key)
    assert KEY[3:10] not in message


def test_without_a_credential_anonymous_is_let_in_only_where_configured() -> None:
    assert identified(OPEN, [], [], 0.0) is ANONYMOUS
    assert "No API key given" in refusal_of(CLOSED, [], [])


def test_a_key_ends_at_its_moment_and_not_before() -> None:
    assert identified(CLOSED, [f"Bearer {EXPIRING}"], [], NOT_AFTER - 0.001).key_id == "k3"
    assert "expired" in refusal_of(CLOSED, [f"Bearer {EXPIRING}"], [], NOT_AFTER)


def test_an_empty_keyring_knows_nobody() -> None:
    assert len(Keyring((), anonymous=None)) == 0
    assert "not known" in refusal_of(Keyring((), anonymous=None), [f"Bearer {KEY}"], [])


def test_a_key_at_the_length_bound_is_still_judged() -> None:
    key = "g" * KEY_CHARS_MAX
    assert identified(Keyring((an_entry(key, "k"),), anonymous=None), [], [key]).key_id == "k"


def test_a_key_of_a_class_that_the_policy_has_no_more_is_not_allowed() -> None:
    with pytest.raises(CredentialRefused) as caught:
        identified(Keyring((an_entry(KEY, "k", service_class="gone"),), anonymous=None), [], [KEY])
    assert (caught.value.refusal.reason, caught.value.refusal.code) == (Reason.NOT_ALLOWED, "service_class_not_allowed")


def test_two_credentials_that_agree_up_to_the_bound_are_still_two() -> None:
    long = "k" * (CREDENTIAL_CHARS_MAX - 1)
    assert "different" in refusal_of(CLOSED, [f"Bearer {long}a"], [f"{long}b"])


HEADER = st.text(max_size=60) | st.text(max_size=60).map("Bearer {}".format) | st.sampled_from([KEY, f"Bearer {KEY}"])
SURROGATES = st.text(st.characters(min_codepoint=0xD800, max_codepoint=0xDFFF), max_size=8).map("Bearer {}".format)


@given(
    authorization=st.lists(HEADER | SURROGATES, max_size=3),
    x_api_key=st.lists(HEADER | SURROGATES, max_size=3),
    now=st.floats(allow_nan=False),
)
def test_any_headers_end_in_a_known_identity_or_unauthenticated(
    authorization: list[str], x_api_key: list[str], now: float
) -> None:
    try:
        identity = identified(CLOSED, authorization, x_api_key, now)
    except CredentialRefused as refused:
        message = refused.refusal.message
    else:
        presented = {value.strip(" \t").split(" ")[-1].strip() for value in authorization + x_api_key}
        assert identity.key_id == "k1"
        assert presented == {KEY}
        return
    assert KEY[3:10] not in message
    assert all(value not in message for value in authorization + x_api_key if len(value) > 20)


def test_tenants_are_counted_by_class_and_are_open_where_an_issuer_may_name_any() -> None:
    classes = ("interactive", "batch")
    assert tenants(OPEN, classes, takes_tokens=False) == {"interactive": 2, "batch": 1}
    assert tenants(OPEN, classes, takes_tokens=True) == {"interactive": None, "batch": None}
