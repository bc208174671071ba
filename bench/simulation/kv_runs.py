"""The KV cache's blocks as `kv_blocks` has them, taken as runs: a prompt is a few of them, however long it is.

Owns the arithmetic of the runs. Blocks are known by what they hold: the prefix that several requests share, or one
request's own tokens, and their place in it; a request that says otherwise (`block_hash`) is not for it.
"""

from __future__ import annotations

from heapq import heappop, heappush
from itertools import count as count_up

from bench.simulation.kv_blocks import NOTHING_FOUND, Found, Holder, PlainBlocks


class Run:
    """Blocks that one request named one after the other, by their places `first` to `behind`, the last excluded.

    What of it is evicted goes from it: what is left in the middle may be several runs, of one `strand`.
    """

    __slots__ = ("behind", "first", "strand")

    def __init__(self, strand: Strand, first: int, behind: int) -> None:
        self.strand = strand
        self.first = first
        self.behind = behind


class Span:
    """A part of a strand that somebody holds, or that is free. `order`: of when it was freed."""

    __slots__ = ("behind", "first", "order", "strand")

    def __init__(self, strand: Strand, first: int, behind: int, order: int = 0) -> None:
        self.strand = strand
        self.first = first
        self.behind = behind
        self.order = order


class Strand:
    """What one request named of one content. held: the spans of whoever holds some of it; free: those of nobody."""

    __slots__ = ("content", "free", "held")

    def __init__(self, content: int) -> None:
        self.content = content
        self.held: list[Span] = []
        self.free: list[Span] = []


def _without(first: int, behind: int, spans: list[Span]) -> list[tuple[int, int]]:
    """Return what is left of a range without the spans, the last part first."""
    left = []
    for span in sorted(spans, key=lambda each: each.behind, reverse=True):
        if span.behind <= first:
            break
        if span.behind < behind:
            left.append((span.behind, behind))
        behind = min(behind, span.first)
        if behind <= first:
            return left
    left.append((first, behind))
    return left


class KvRuns(PlainBlocks):
    """All blocks but the null block. _by_content: runs in the order they were named, of which the first is found."""

    def __init__(self, blocks: int, block_tokens: int) -> None:
        super().__init__(blocks)
        self._block_tokens = block_tokens
        self._plain = self.free
        self._by_content: dict[int, list[Run]] = {}
        self._cached: list[tuple[int, int, int, Span]] = []  # a heap: first freed first, its last block first
        self._numbers = count_up()

    def find(self, request: Holder) -> Found:
        if not request.prefix_tokens and ~request.id not in self._by_content:
            return NOTHING_FOUND
        wanted = (request.known_tokens - 1) // self._block_tokens
        shared = min(wanted, request.prefix_tokens // self._block_tokens)
        held: list[tuple[Strand, int, int]] = []
        place = self._find(request.prefix, 0, shared, held) if shared else 0
        if place == shared and wanted > shared:
            place = self._find(~request.id, place, wanted, held)
        if not held:
            return NOTHING_FOUND
        free = sum(_shared(span, first, behind) for strand, first, behind in held for span in strand.free)
        return Found(place, free, held)

    def _find(self, content: int, place: int, wanted: int, held: list[tuple[Strand, int, int]]) -> int:
        """Add what is cached of a content from a place on; return the first place that is not."""
        runs = self._by_content.get(content, ())
        while place < wanted:
            # Where one begins behind `place`, another that was named sooner has what is before it: whoever holds a
            # block holds all before it, and of what is given up the last blocks go first.
            run = next((run for run in runs if run.first <= place < run.behind), None)
            if run is None:
                break
            behind = min(wanted, run.behind)
            held.append((run.strand, place, behind))
            place = behind
        return place

    def hold(self, request: Holder, found: Found) -> None:
        for strand, first, behind in found.held:
            for span in [span for span in strand.free if _shared(span, first, behind)]:
                self._cut(span, first, behind)
            mine = Span(strand, first, behind)
            strand.held.append(mine)
            request.held.append(mine)
        request.blocks = request.named = found.blocks
        self.free -= found.free

    def _cut(self, span: Span, first: int, behind: int) -> None:
        """Take a range out of a free span; what is left keeps its place in the order of eviction."""
        above, span_behind = max(behind, span.first), span.behind
        span.behind = min(first, span.behind)
        if span.behind <= span.first:
            span.behind = span.first
            span.strand.free.remove(span)
        else:
            self._queue(span)
        if above < span_behind:
            rest = Span(span.strand, above, span_behind, span.order)
            span.strand.free.append(rest)
            self._queue(rest)

    def _queue(self, span: Span) -> None:
        heappush(self._cached, (span.order, -span.behind, next(self._numbers), span))

    def reserve(self, count: int) -> None:
        self.free -= count
        if count <= self._plain:
            self._plain -= count
            return
        count -= self._plain
        self._plain = 0
        while count:
            _, behind, _, span = self._cached[0]
            if -behind != span.behind or span.first == span.behind:  # held again meanwhile, or queued anew
                heappop(self._cached)
                continue
            heappop(self._cached)
            evicted = min(count, span.behind - span.first)
            count -= evicted
            self._forget(span.strand, span.behind - evicted, span.behind)
            span.behind -= evicted
            if span.behind > span.first:
                self._queue(span)
            else:
                span.strand.free.remove(span)

    def _forget(self, strand: Strand, first: int, behind: int) -> None:
        """Let evicted blocks be found no more."""
        runs = self._by_content[strand.content]
        if len(runs) == 1 and runs[0].first < first and runs[0].behind == behind:
            runs[0].behind = first
            return
        left: list[Run] = []
        for run in runs:
            if run.strand is not strand or run.behind <= first or run.first >= behind:
                left.append(run)
                continue
            if run.first < first:
                left.append(Run(strand, run.first, first))
            if run.behind > behind:
                left.append(Run(strand, behind, run.behind))
        if left:
            self._by_content[strand.content] = left
        else:
            del self._by_content[strand.content]

    def take(self, request: Holder, count: int) -> None:
        self.reserve(count)
        request.blocks += count

    def name(self, request: Holder, full: int) -> None:
        named = request.named
        if full <= named:
            return
        shared = request.prefix_tokens // self._block_tokens
        if named < shared:
            self._name(request, request.prefix, named, min(full, shared))
        if full > shared:
            self._name(request, ~request.id, max(named, shared), full)
        request.named = full

    def _name(self, request: Holder, content: int, first: int, behind: int) -> None:
        runs = self._by_content.setdefault(content, [])
        last, mine = runs[-1] if runs else None, request.held[-1] if request.held else None
        if last is not None and mine is not None and last.strand is mine.strand and last.behind == first:
            last.behind = mine.behind = behind
            return
        strand = Strand(content)
        mine = Span(strand, first, behind)
        strand.held.append(mine)
        request.held.append(mine)
        runs.append(Run(strand, first, behind))

    def release(self, request: Holder) -> None:
        free = request.blocks - request.named
        self._plain += free
        held: list[Span] = request.held
        for mine in reversed(held):
            strand = mine.strand
            strand.held.remove(mine)
            left = _without(mine.first, mine.behind, strand.held) if strand.held else [(mine.first, mine.behind)]
            for first, behind in left:
                freed = Span(strand, first, behind, next(self._numbers))
                strand.free.append(freed)
                self._queue(freed)
                free += behind - first
        self.free += free
        request.held = []
        request.blocks = request.named = 0


def _shared(span: Span, first: int, behind: int) -> int:
    return max(0, min(span.behind, behind) - max(span.first, first))
