"""The flags an engine is started with, under vLLM's own names, and the comparison with what it took.

Owns the kit's defaults (the ones that the shipped policies are written for). Starts nothing.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True, slots=True)
class EngineFlags:
    """vLLM's scheduling flags. long_prefill_token_threshold 0 is off. extra: further flags, passed on as they are."""

    scheduling_policy: str = "priority"
    long_prefill_token_threshold: int = 640
    max_num_batched_tokens: int = 2048
    max_num_seqs: int = 128
    enable_prefix_caching: bool = False
    extra: tuple[str, ...] = ()

    @classmethod
    def parse(cls, argv: Sequence[str]) -> EngineFlags:
        """From vLLM's own spelling, what is not named keeping the kit's default. Exits with usage on a bad value."""
        parser = argparse.ArgumentParser(prog="ENGINE_FLAGS", add_help=False, allow_abbrev=False)
        parser.add_argument("--scheduling-policy", choices=("priority", "fcfs"), default=cls().scheduling_policy)
        for name in ("long_prefill_token_threshold", "max_num_batched_tokens", "max_num_seqs"):
            parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=getattr(cls(), name))
        parser.add_argument(
            "--enable-prefix-caching",
            action=argparse.BooleanOptionalAction,
            default=cls().enable_prefix_caching,
        )
        known, extra = parser.parse_known_args(argv)
        return cls(**vars(known), extra=tuple(extra))

    def argv(self) -> list[str]:
        prefix_caching = "--enable-prefix-caching" if self.enable_prefix_caching else "--no-enable-prefix-caching"
        return [
            "--scheduling-policy", self.scheduling_policy,
            "--long-prefill-token-threshold", str(self.long_prefill_token_threshold),
            "--max-num-batched-tokens", str(self.max_num_batched_tokens),
            "--max-num-seqs", str(self.max_num_seqs),
            prefix_caching,
            *self.extra,
        ]  # fmt: skip

    def differences(self, effective: dict[str, Any]) -> list[str]:
        """One sentence for each flag in force with another value; what the engine does not tell is not judged."""
        found = []
        for field in fields(self):
            asked = getattr(self, field.name)
            if field.name in effective and effective[field.name] != asked:
                found.append(f"{field.name} is {effective[field.name]!r}, asked was {asked!r}")
        return found
