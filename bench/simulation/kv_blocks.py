"""The KV cache's blocks, one by one: who holds how many, and which of the free ones can still serve a prefix.

Owns references, names and the order of eviction. Free blocks without a name always go first in vLLM's queue, and are
all alike: here they are a number. Free blocks with a name follow, least recently freed first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol


class Holder(Protocol):
    """What a cache needs of a request. blocks: how many it holds; held: those of them that have names, as the cache
    keeps them; named: how many those are, its first ones. Its first prefix_tokens are those of every `prefix`.
    """

    id: int
    prefix: int
    prefix_tokens: int
    blocks: int
    named: int
    held: list[Any]

    @property
    def known_tokens(self) -> int: ...

    def block_hash(self, index: int, block_tokens: int) -> Hashable: ...


@dataclass(frozen=True, slots=True)
class Found:
    """The longest run of blocks from a request's first on that are cached. free: how many of them nobody holds."""

    blocks: int
    free: int
    held: Sequence[Any] = ()


NOTHING_FOUND = Found(0, 0)


class PlainBlocks:
    """Blocks that keep nothing once they are free: all alike, and a number. All but the null block."""

    def __init__(self, blocks: int) -> None:
        self.free = blocks - 1

    def find(self, request: Holder) -> Found:
        """Return what is cached of a request; its last token is always computed."""
        del request
        return NOTHING_FOUND

    def hold(self, request: Holder, found: Found) -> None:
        """Let a request that holds nothing have what `find` returned."""

    def reserve(self, count: int) -> None:
        """Take blocks; named ones are evicted where no plain one is left. `count` must be free."""
        self.free -= count

    def take(self, request: Holder, count: int) -> None:
        """Let a request have `count` more blocks, which must be free."""
        self.free -= count
        request.blocks += count

    def name(self, request: Holder, full: int) -> None:
        """Let a request's first `full` blocks be found by what they hold; it holds them."""

    def release(self, request: Holder) -> None:
        """Give up all that a request holds; its last blocks are the first to be evicted."""
        self.free += request.blocks
        request.blocks = 0


@dataclass(eq=False, slots=True)
class Block:
    """A block in use, or a free one that keeps its content under its hash."""

    hash: Hashable
    references: int = 1


class KvBlocks(PlainBlocks):
    """Every named block is an object of its own, whatever its hash is made of."""

    def __init__(self, blocks: int, block_tokens: int) -> None:
        super().__init__(blocks)
        self.block_tokens = block_tokens
        self._plain = self.free
        # A dict finds its first slower, the more went before.
        self._cached: OrderedDict[Block, None] = OrderedDict()
        self._by_hash: dict[Hashable, dict[Block, None]] = {}

    def find(self, request: Holder) -> Found:
        held: list[Block] = []
        for index in range((request.known_tokens - 1) // self.block_tokens):
            cached = self._by_hash.get(request.block_hash(index, self.block_tokens))
            if cached is None:
                break
            held.append(next(iter(cached)))
        return Found(len(held), sum(not block.references for block in held), held)

    def hold(self, request: Holder, found: Found) -> None:
        for block in found.held:
            self._cached.pop(block, None)
            block.references += 1
        request.held = list(found.held)
        request.blocks = request.named = found.blocks
        self.free -= found.free

    def reserve(self, count: int) -> None:
        self.free -= count
        plain = min(count, self._plain)
        self._plain -= plain
        for _ in range(count - plain):
            evicted, _ = self._cached.popitem(last=False)
            holders = self._by_hash[evicted.hash]
            del holders[evicted]
            if not holders:
                del self._by_hash[evicted.hash]

    def take(self, request: Holder, count: int) -> None:
        self.reserve(count)
        request.blocks += count

    def name(self, request: Holder, full: int) -> None:
        for index in range(request.named, full):
            block = Block(request.block_hash(index, self.block_tokens))
            self._by_hash.setdefault(block.hash, {})[block] = None
            request.held.append(block)
            request.named = index + 1

    def release(self, request: Holder) -> None:
        free = request.blocks - request.named
        self._plain += free
        held: list[Block] = request.held
        for block in reversed(held):
            block.references -= 1
            if not block.references:
                self._cached[block] = None
                free += 1
        self.free += free
        request.held = []
        request.blocks = request.named = 0
