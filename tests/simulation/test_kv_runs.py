"""The KV cache in runs against the same cache block by block: what is found, what is free and what goes first."""

from __future__ import annotations

from random import Random

import pytest

from bench.simulation.kv_blocks import KvBlocks
from bench.simulation.kv_runs import KvRuns
from bench.simulation.steps import EngineRequest

BLOCK_TOKENS = 4


class Pair:
    """Both caches with the same requests. found_blocks: by all of them."""

    def __init__(self, blocks: int) -> None:
        self.caches = KvBlocks(blocks, BLOCK_TOKENS), KvRuns(blocks, BLOCK_TOKENS)
        self.running: list[tuple[EngineRequest, EngineRequest]] = []
        self.gone: list[tuple[EngineRequest, EngineRequest]] = []
        self.found_blocks = 0

    def begin(self, pair: tuple[EngineRequest, EngineRequest]) -> None:
        founds = [cache.find(request) for cache, request in zip(self.caches, pair, strict=True)]
        assert founds[0].blocks == founds[1].blocks
        assert founds[0].free == founds[1].free
        if founds[0].free > self.caches[0].free:
            return
        for cache, request, found in zip(self.caches, pair, founds, strict=True):
            cache.hold(request, found)
        self.found_blocks += founds[0].blocks
        self.running.append(pair)

    def grow(self, pair: tuple[EngineRequest, EngineRequest], blocks: int, unnamed: int) -> None:
        blocks = min(blocks, self.caches[0].free)
        for cache, request in zip(self.caches, pair, strict=True):
            cache.take(request, blocks)
            cache.name(request, request.blocks - min(unnamed, request.blocks - request.named))

    def end(self, pair: tuple[EngineRequest, EngineRequest]) -> None:
        self.running.remove(pair)
        self.gone.append(pair)
        for cache, request in zip(self.caches, pair, strict=True):
            cache.release(request)

    def look(self) -> None:
        one, other = self.caches
        assert one.free == other.free
        for first, second in [*self.running, *self.gone[-4:]]:
            assert (first.blocks, first.named) == (second.blocks, second.named)
            assert (one.find(first).blocks, one.find(first).free) == (
                other.find(second).blocks,
                other.find(second).free,
            )


@pytest.mark.parametrize("seed", range(8))
def test_blocks_in_runs_are_found_and_evicted_as_they_are_one_by_one(seed):
    random = Random(seed)
    pair, number = Pair(random.choice([14, 20, 30])), 0
    for _ in range(400):
        act = random.random()
        if act < 0.3 or not pair.running:
            number += 1
            tokens = random.randint(8, 50)
            shared = random.choice([tokens, tokens, random.randint(0, tokens)])
            one, other = (EngineRequest(number, tokens, 50, prefix_tokens=shared) for _ in range(2))
            pair.begin((one, other))
        elif act < 0.4 and pair.gone:
            pair.begin(pair.gone.pop(random.randrange(len(pair.gone))))
        elif act < 0.8:
            pair.grow(random.choice(pair.running), random.randint(0, 4), random.choice([0, 1]))
        else:
            pair.end(random.choice(pair.running))
        pair.look()
    assert pair.found_blocks > 20
