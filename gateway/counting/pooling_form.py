"""The prompts of embeddings, rerank and score requests.

Owns which of a body's forms is meant, and which texts make pairs, as vLLM 0.32 reads them. A pair is counted as a
cross-encoder gets it, both texts with one set of special tokens; a model that embeds each text alone takes less, since
it reads a query once: what holds pairs is an estimate, upward.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gateway.counting.counter import uncountable

Members = Mapping[str, Any]

_SCORE_MEMBERS = (("queries", "documents"), ("queries", "items"), ("data_1", "data_2"), ("text_1", "text_2"))


@dataclass(frozen=True, slots=True)
class Pair:
    """Two texts that are one prompt. *_tokens_max: what the caller lets be kept of each, None: all."""

    query: str
    document: str
    query_tokens_max: int | None
    document_tokens_max: int | None


def embedded_chats(members: Members) -> list[dict[str, Any]]:
    """The conversations of an embeddings request, each as a chat request; empty where it holds texts."""
    stated = members.get("messages", members.get("input"))
    if _is_conversation(stated):
        conversations = [stated]
    elif isinstance(stated, list) and stated and all(map(_is_conversation, stated)):
        conversations = stated
    else:
        return []
    # Nothing is generated, so that nothing is prompted for unless it is asked.
    generation = members.get("add_generation_prompt") is True
    return [{**members, "messages": messages, "add_generation_prompt": generation} for messages in conversations]


def pairs_of(members: Members) -> list[Pair]:
    """The pairs of a rerank or score request: each query with each document, or one by one where there are as many."""
    queries, documents = _sides(members)
    kept = _tokens_max(members, "max_tokens_per_query"), _tokens_max(members, "max_tokens_per_doc")
    if len(queries) == 1:
        queries = queries * len(documents)
    if len(queries) != len(documents):
        raise uncountable("invalid_value", "There have to be one query or as many as documents.", "queries")
    return [Pair(query, document, *kept) for query, document in zip(queries, documents, strict=True)]


def _sides(members: Members) -> tuple[list[str], list[str]]:
    names = ("query", "documents") if "query" in members else _score_members(members)
    first, second = (list(_texts(members.get(name), name)) for name in names)
    return first, second


def _score_members(members: Members) -> tuple[str, str]:
    found = next((names for names in _SCORE_MEMBERS if names[0] in members and names[1] in members), None)
    if found is None:
        raise uncountable("missing_required_parameter", "There is nothing to score.", "queries")
    return found


def _texts(stated: Any, name: str) -> Iterator[str]:
    for value in stated if isinstance(stated, list) else [stated]:
        parts = value.get("content") if isinstance(value, dict) else value
        if isinstance(parts, list):
            # Parts of one text; what else is in it is declared, not counted.
            yield "".join(
                part["text"] for part in parts if isinstance(part, dict) and isinstance(part.get("text"), str)
            )
        elif isinstance(parts, str):
            yield parts
        else:
            raise uncountable("invalid_type", f"{name} has to hold texts.", name)


def _tokens_max(members: Members, name: str) -> int | None:
    stated = members.get(name)
    return stated if type(stated) is int and stated > 0 else None


def _is_conversation(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(m, dict) and "role" in m for m in value)
