"""Credentials of a request → Identity.

Owns the choice between an API key, a signed token and no credential. Fails closed: whatever is presented and not known
is refused, also where anonymous callers are let in, and whoever has no class of the policy has none of its shares.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from gateway.core.types import Identity
from gateway.identity.credentials import not_allowed, presented
from gateway.identity.keyring import Keyring
from gateway.identity.keys import KEY_PREFIX
from gateway.identity.tokens import Tokens


async def identify(
    authorization: Sequence[str],
    x_api_key: Sequence[str],
    *,
    keyring: Keyring,
    tokens: Tokens | None,
    service_classes: Collection[str],
    now: Callable[[], float],
) -> Identity:
    """Who is calling, from all values of the two headers; raises CredentialRefused and nothing else.

    tokens: None where no issuer of tokens is configured.
    """
    credential = presented(authorization, x_api_key)
    if credential is None:
        identity = keyring.of_nobody()
    elif tokens is None or not _is_token(credential):
        identity = keyring.of_key(credential, now())
    else:
        identity = await tokens.identify(credential, now)
    if identity.service_class not in service_classes:
        raise not_allowed("The policy does not have this credential's service class.")
    return identity


def _is_token(credential: str) -> bool:
    """By its form alone: neither form is a secret, and no key has a dot."""
    return credential.count(".") == 2 and not credential.startswith(KEY_PREFIX)
