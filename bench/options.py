"""The small languages of options: `80/20`, `short=ENV`, `k=v`. Pure; raises UsageError naming the option."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from bench.errors import UsageError
from bench.load.target import ANY_CLASS
from bench.scenario import ANY_ARM
from bench.trace.arrivals import CLASS_NAME
from bench.trace.mix import ClassLoad

SHORT, LONG = "short", "long"


def parse_mix(text: str, *, lengths: Mapping[str, tuple[int, int]], where: str) -> list[ClassLoad]:
    """`80/20`: shares of short and long by request count; a class with share 0 does not occur.

    lengths: class name to (prompt tokens, output tokens).
    """
    parts = text.split("/")
    if len(parts) != 2 or not all(part.isascii() and part.isdigit() and len(part) <= 6 for part in parts):
        raise UsageError(f"{where}: {text!r} is no mix. Give short/long shares by request count, as 80/20 or 100/0.")
    shares = dict(zip((SHORT, LONG), (int(part) for part in parts), strict=True))
    mix = [ClassLoad(name, share, *lengths[name]) for name, share in shares.items() if share > 0]
    if not mix:
        raise UsageError(f"{where}: {text!r} leaves no requests. Give one of the shares more than 0.")
    return mix


def parse_pairs(words: Iterable[str], where: str) -> dict[str, str]:
    """`k=v` words; a key given twice is refused."""
    pairs: dict[str, str] = {}
    for text in words:
        key, equals, value = text.partition("=")
        if not equals or not key or not value:
            raise UsageError(f"{where}: {text!r} is not KEY=VALUE.")
        if key in pairs:
            raise UsageError(f"{where}: {key!r} is given twice. Keep one.")
        pairs[key] = value
    return pairs


def parse_capacity(words: Sequence[str], where: str) -> float | dict[str, float] | None:
    """`6.8` for all mixes, or `80/20=6.8 50/50=3.2`; None where nothing is said."""
    if not words:
        return None
    try:
        if len(words) == 1 and "=" not in words[0]:
            return float(words[0])
        return {mix: float(text) for mix, text in parse_pairs(words, where).items()}
    except ValueError:
        raise UsageError(f"{where}: {' '.join(words)!r}: give requests per second, as 6.8 or 80/20=6.8.") from None


def parse_prices(words: Sequence[str] | None, where: str) -> dict[str, float] | None:
    """`2.5`, `isolated=5`, or both: the one without a name is for all other arms. None where nothing is said."""
    if words is None:
        return None
    pairs = parse_pairs((each if "=" in each else f"{ANY_ARM}={each}" for each in words), where)
    try:
        return {arm: float(text) for arm, text in pairs.items()}
    except ValueError:
        raise UsageError(f"{where}: {' '.join(words)!r}: give numbers, as 2.5 isolated=5.") from None


def parse_credentials(words: Iterable[str], where: str) -> dict[str, str]:
    """`short=ENV long=ENV`, or a single `ENV` for all classes: names of environment variables, never keys."""
    pairs = parse_pairs((text if "=" in text else f"{ANY_CLASS}={text}" for text in words), where)
    for class_name in pairs:
        if class_name != ANY_CLASS and not CLASS_NAME.fullmatch(class_name):
            raise UsageError(f"{where}: {class_name!r} is no class name.")
    for name in pairs.values():
        if not name.isidentifier():
            # The text is not repeated: it may be the key itself.
            raise UsageError(f"{where}: give the NAME of an environment variable, not the key: short=GATEWAY_KEY.")
    return pairs


def parse_priorities(words: Iterable[str], where: str) -> dict[str, int]:
    """`short=0 long=10`: integers in vLLM's range, lower is sooner."""
    priorities: dict[str, int] = {}
    for class_name, text in parse_pairs(words, where).items():
        try:
            priorities[class_name] = int(text)
        except ValueError:
            raise UsageError(f"{where}: {text!r} is no integer.") from None
        if not -(2**63) <= priorities[class_name] < 2**63:
            raise UsageError(f"{where}: {text} is outside of vLLM's 64 bits.")
    return priorities


def check_classes(where: str, named: set[str], known: set[str]) -> None:
    """Raise UsageError where an option names a class that the trace does not have: a typing error would go unseen."""
    unknown = sorted(named - known)
    if unknown:
        raise UsageError(f"{where}: no class {unknown[0]!r} in this trace; it has {', '.join(sorted(known))}.")
