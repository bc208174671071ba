"""A trace without anything of those who sent it: times, lengths, classes and salted prefix hashes alone. Pure."""

from __future__ import annotations

import hashlib
import hmac

from bench.trace.arrivals import Arrival, Trace

HASH_CHARACTERS = 16


def anonymized(trace: Trace, salt: bytes) -> Trace:
    """Tenant, service class, session and the origin's words go; a prefix name becomes a hash that needs the salt.

    Equal names stay equal, so that what is shared stays shared; without the salt nobody can try names out.
    """
    arrivals = tuple(
        Arrival(
            at_s=each.at_s,
            class_name=each.class_name,
            prompt_tokens=each.prompt_tokens,
            output_tokens=each.output_tokens,
            cancel_after_s=each.cancel_after_s,
            prefix=tuple(_hash(name, salt) for name in each.prefix),
        )
        for each in trace.arrivals
    )
    origin = {"label": "anonymized", "keeps": "times, lengths, classes, salted prefix hashes"}
    return Trace(arrivals, trace.span_s, origin, trace.prefix_block_tokens)


def _hash(name: str, salt: bytes) -> str:
    return hmac.new(salt, name.encode(), hashlib.sha256).hexdigest()[:HASH_CHARACTERS]
