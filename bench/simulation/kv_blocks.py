"""The KV cache's blocks: who holds how many, and which of the free ones can still serve a prefix.

Owns references, hashes and the order of eviction. Free blocks without a hash always go first in vLLM's queue, and are
all alike: here they are a number. Free blocks with a hash follow, least recently freed first.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass


@dataclass(eq=False, slots=True)
class Block:
    """A block in use, or a free one that keeps its content under its hash."""

    references: int = 1
    hash: Hashable | None = None


_ANY = Block()


class KvBlocks:
    """All blocks but the null block. keeps_contents: whether blocks are given names; without, all are one and alike."""

    def __init__(self, blocks: int, *, keeps_contents: bool = True) -> None:
        self._keeps_contents = keeps_contents
        self._free_plain = blocks - 1
        self._free_hashed: dict[Block, None] = {}
        self._by_hash: dict[Hashable, dict[Block, None]] = {}

    @property
    def free(self) -> int:
        return self._free_plain + len(self._free_hashed)

    def find(self, hashes: Iterable[Hashable]) -> list[Block]:
        """Return the cached blocks of the longest run of hashes from the first on."""
        found = []
        for block_hash in hashes:
            cached = self._by_hash.get(block_hash)
            if cached is None:
                break
            found.append(next(iter(cached)))
        return found

    def hold(self, blocks: Sequence[Block]) -> None:
        """Add a reference to blocks that `find` returned."""
        for block in blocks:
            self._free_hashed.pop(block, None)
            block.references += 1

    def take(self, count: int) -> list[Block]:
        """Return fresh blocks; cached ones are evicted where no plain one is left. `count` must be free."""
        self.reserve(count)
        return self.fresh(count)

    def fresh(self, count: int) -> list[Block]:
        """Return so many of the blocks that `reserve` took."""
        return [Block() for _ in range(count)] if self._keeps_contents else [_ANY] * count

    def reserve(self, count: int) -> None:
        """Take blocks, as `take` does, that `fresh` gives names to hold them by."""
        plain = min(count, self._free_plain)
        self._free_plain -= plain
        for _ in range(count - plain):
            evicted = next(iter(self._free_hashed))
            del self._free_hashed[evicted]
            holders = self._by_hash[evicted.hash]
            del holders[evicted]
            if not holders:
                del self._by_hash[evicted.hash]

    def name(self, block: Block, block_hash: Hashable) -> None:
        """Let a full block be found by its hash."""
        block.hash = block_hash
        self._by_hash.setdefault(block_hash, {})[block] = None

    def release(self, blocks: Sequence[Block]) -> None:
        """Give up one reference to each; the last blocks of a request are the first to be evicted."""
        if not self._keeps_contents:
            self._free_plain += len(blocks)
            return
        for block in reversed(blocks):
            block.references -= 1
            if block.references:
                continue
            if block.hash is None:
                self._free_plain += 1
            else:
                self._free_hashed[block] = None
