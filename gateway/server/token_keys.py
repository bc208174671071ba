"""The issuer's signing keys, had from its file or its address and kept current: auth.jwt of the configuration.

Owns the HTTP to that address: no redirect, no proxy, no cookie, a bound on the answer. Says nothing to engines.
"""

from __future__ import annotations

import asyncio

import aiohttp

from gateway.identity import signing_keys
from gateway.identity.fetched_keys import FETCH_S_MAX, FetchedKeys, KeysUnreachable
from gateway.identity.signing_keys import KEY_SET_BYTES_MAX
from gateway.identity.tokens import TokenRules, Tokens
from gateway.observe.metrics import Observer
from gateway.server.clock import LoopClock
from gateway.server.keys_watch import KeysWatch
from gateway.settings import Jwt


class TokenKeys:
    """Keeps the signing keys of `tokens` current. Must be made inside a running event loop."""

    def __init__(self, jwt: Jwt, clock: LoopClock, observer: Observer) -> None:
        self._file = jwt.jwks_file
        self._reloaded = observer.reloaded
        rules = TokenRules(jwt.issuer, jwt.audience, jwt.service_class_claim, jwt.tenant_claim, jwt.models_claim)
        self.tokens = Tokens(rules, self._look_again)
        self._fetched: FetchedKeys | None = None
        if jwt.jwks_url is not None:
            url = jwt.jwks_url
            self._fetched = FetchedKeys(
                lambda: fetch(url),
                self.tokens.put_in_force,
                lambda result: observer.signing_keys_fetched(result.value),
                clock.wall,
            )

    async def load(self) -> None:
        """Read the file, where there is one. Raises ConfigError. An address may answer later."""
        if self._file is not None:
            self.tokens.put_in_force(await asyncio.to_thread(signing_keys.load_key_set, self._file))

    async def run(self, one_at_a_time: asyncio.Lock) -> None:
        """Keep them current until cancelled; one_at_a_time: as KeysWatch has it."""
        if self._fetched is not None:
            await self._fetched.run()
        elif (file := self._file) is not None:
            watch = KeysWatch(
                lambda: file,
                lambda: signing_keys.load_key_set(file),
                self.tokens.put_in_force,
                self._reloaded,
                one_at_a_time,
            )
            await watch.run()

    async def _look_again(self) -> bool:
        return self._fetched is not None and await self._fetched.look_again()


async def fetch(url: str) -> bytes:
    """Ask the address once; raises KeysUnreachable."""
    try:
        async with (
            aiohttp.ClientSession(
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(total=FETCH_S_MAX),
                auto_decompress=False,
                trust_env=False,
                headers={"Accept": "application/jwk-set+json, application/json", "Accept-Encoding": "identity"},
            ) as session,
            session.get(url, allow_redirects=False) as answer,
        ):
            if answer.status != 200:
                raise KeysUnreachable(f"answers with status {answer.status}")
            body = b""
            async for piece in answer.content.iter_any():
                body += piece
                if len(body) > KEY_SET_BYTES_MAX:
                    raise KeysUnreachable(f"answers with more than {KEY_SET_BYTES_MAX} bytes")
            return body
    except TimeoutError:
        raise KeysUnreachable(f"does not answer within {FETCH_S_MAX:g} s") from None
    except (aiohttp.ClientError, OSError) as error:
        # The system's own words: they are for the operator, who can mend it.
        raise KeysUnreachable(f"cannot be asked ({error})") from error
