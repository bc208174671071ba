"""The SDKs as their users make them, closed at the end; and their pauses between tries, noted instead of slept."""

from __future__ import annotations

import anthropic
import anyio
import httpx2
import openai
import pytest

from gateway.testing.harness import INTERACTIVE_KEY


@pytest.fixture
async def openai_at():
    """Make OpenAI's client of a port."""
    async with httpx2.AsyncClient(timeout=120) as http:

        def make(port, key=INTERACTIVE_KEY, **options):
            return openai.AsyncOpenAI(
                base_url=f"http://127.0.0.1:{port}/v1", api_key=key, http_client=http, **{"max_retries": 0, **options}
            )

        yield make


@pytest.fixture
async def anthropic_at():
    """Make Anthropic's client of a port."""
    async with httpx2.AsyncClient(timeout=120) as http:

        def make(port, key=INTERACTIVE_KEY, **options):
            return anthropic.AsyncAnthropic(
                base_url=f"http://127.0.0.1:{port}", api_key=key, http_client=http, **{"max_retries": 0, **options}
            )

        yield make


@pytest.fixture
def pauses(monkeypatch):
    """The seconds that an SDK would have slept before each further try."""
    slept = []

    async def note(delay):
        slept.append(delay)

    monkeypatch.setattr(anyio, "sleep", note)
    return slept
