"""Our count against the engine's usage over hundreds of generated requests of every form, on the real engine."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import aiohttp
import pytest

from gateway.counting.local import LocalTokenizer
from gateway.testing.counted_calls import a_counted_call
from gateway.wire.dialects import PromptForm

pytestmark = pytest.mark.engine

EACH_FORM = 110
AT_ONCE = 16
PATHS = {
    PromptForm.CHAT: "/v1/chat/completions",
    PromptForm.COMPLETION: "/v1/completions",
    PromptForm.RESPONSES: "/v1/responses",
    PromptForm.MESSAGES: "/v1/messages",
}
TEXTS = (
    *(
        "Who was Ada?",
        "",
        "  two  spaces\n\n",
        "Größe 漢字かな 😀👩‍👩‍👧",
        "e\u0301\u0000\u200b",
        "<|end|>\n<|user|>",
        "x" * 90,
    ),
    *(
        "<|begin|><|assistant|><|im_start|>system\n[INST]",
        "\u0007\u001b[0m\u007f\u0085\u2028",
        " " * 300,
        "\n \n" * 30,
    ),
    *("🏳️‍🌈👩🏽‍💻🇩🇪" * 2, "a\u0300\u0301\u0302" * 12, "Donaudampfschiff" * 12, "\U0010ffff\ufeff\u202e"),
    *('{"a": [1, 2]}', "the quick brown fox jumps " * 9, "def f(x):\n\treturn x**2\r\n", "عربى नमस्ते ไทย"),
)
TOWN = {"type": "string", "description": "día", "enum": ["Ulm", "<|end|>"]}
LEG = {"type": "object", "properties": {"from": TOWN, "to": {"anyOf": [TOWN, {"type": "null"}]}}, "$defs": {"Z": {}}}
SCHEMA = {
    "type": "object",
    "properties": {"town": TOWN, "legs": {"type": "array", "items": LEG, "minItems": 1, "default": [None, 1.5, True]}},
    "required": ["town"],
}

Body = dict[str, Any]


class Bodies:
    """Requests of one form, the same ones for the same seed."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)

    def text(self) -> str:
        return " ".join(self._random.choices(TEXTS, k=self._random.randint(1, 3)))

    def maybe(self, value: Callable[[], Any], often: float = 0.3) -> Any:
        return value() if self._random.random() < often else None

    def given(self, **members: Any) -> Body:
        return {name: value for name, value in members.items() if value is not None}

    def chat(self) -> Body:
        messages = [message for _ in range(self._random.randint(1, 4)) for message in self._turn()]
        body = self.given(
            messages=[*messages, {"role": "user", "content": self.text()}],
            tools=self.maybe(lambda: [self._tool() for _ in range(self._random.randint(1, 3))]),
            chat_template_kwargs=self.maybe(lambda: {"bos_token": "<|begin|><|begin|>"}, 0.1),
            add_special_tokens=self.maybe(lambda: True, 0.2),
            truncate_prompt_tokens=self.maybe(lambda: self._random.choice([-1, 7, 400]), 0.2),
            reasoning_effort=self.maybe(lambda: "low", 0.1),
            documents=self.maybe(lambda: [{"title": "t", "text": self.text()}], 0.1),
        )
        if "tools" in body:
            body["tool_choice"] = "none"
        if self._random.random() < 0.2:
            body["messages"].append({"role": "assistant", "content": "She was " + self.text() + "!"})
            body |= {"add_generation_prompt": False, "continue_final_message": True}
        elif self._random.random() < 0.2:
            body["add_generation_prompt"] = False
        return body

    def completion(self) -> Body:
        ids = [self._random.randrange(3, 300) for _ in range(self._random.randint(1, 30))]
        texts = [self.text() or "a" for _ in range(self._random.randint(1, 4))]
        return self.given(
            prompt=self._random.choice([texts[0] + ".", [text + "." for text in texts], ids, [ids, ids[:1]]]),
            add_special_tokens=self.maybe(lambda: self._random.random() < 0.5),
            truncate_prompt_tokens=self.maybe(lambda: self._random.choice([-1, 3, 200])),
        )

    def response(self) -> Body:
        items = [item for _ in range(self._random.randint(1, 4)) for item in self._items()]
        body = self.given(
            input=self._random.choice([self.text() + "?", [*items, {"role": "user", "content": self.text()}]]),
            instructions=self.maybe(self.text),
            tools=self.maybe(lambda: [self._flat_tool() for _ in range(self._random.randint(1, 3))]),
            reasoning=self.maybe(lambda: {"effort": "low"}, 0.2),
            truncation=self.maybe(lambda: "auto", 0.2),
        )
        if "tools" in body:
            body["tool_choice"] = "none"
        if isinstance(body["input"], list) and self._random.random() < 0.2:
            part = {"type": "output_text", "text": "It is " + self.text() + "."}
            body["input"].append({"type": "message", "role": "assistant", "content": [part], "status": "incomplete"})
        return body

    def messages(self) -> Body:
        turns = [message for _ in range(self._random.randint(1, 4)) for message in self._block_turns()]
        system = [{"type": "text", "text": self.text()}, {"type": "text", "text": "x-anthropic-billing-header: 1\nB"}]
        body = self.given(
            messages=[*turns, {"role": "user", "content": self.text() + "?"}],
            system=self.maybe(lambda: self._random.choice([self.text(), system]), 0.6),
            tools=self.maybe(lambda: [self.given(**self._function("input_schema")) for _ in range(2)]),
            thinking=self.maybe(lambda: {"type": "disabled"}, 0.2),
            output_config=self.maybe(lambda: {"effort": "high"}, 0.2),
        )
        if "tools" in body:
            body["tool_choice"] = {"type": "none"}
        return body

    def _turn(self) -> list[Body]:
        parts = [{"type": "text", "text": self.text()}, self.text(), {"type": "text", "text": ""}]
        call = {
            "id": "c1",
            "type": "function",
            "function": {"name": "w", "arguments": json.dumps({"town": self.text()})},
        }
        return self._random.choice(
            [
                [{"role": "system", "content": self._random.choice([self.text(), parts])}],
                [{"role": "developer", "content": self._random.choice([self.text(), parts])}],
                [{"role": "assistant", "content": None}, {"role": "user", "content": ""}],
                [{"role": "user", "content": parts, "name": "bob"}],
                [{"role": "assistant", "content": self.text(), "reasoning_content": "why"}],
                [
                    {"role": "assistant", "content": None, "tool_calls": [call]},
                    {"role": "tool", "tool_call_id": "c1", "content": self._random.choice([self.text(), parts])},
                ],
            ]
        )

    def _items(self) -> list[Body]:
        call = {"type": "function_call", "call_id": "c", "name": "w", "arguments": json.dumps({"town": self.text()})}
        answer = {"type": "function_call_output", "call_id": "c", "output": self.text()}
        said = {"type": "output_text", "text": self.text() + "."}
        return self._random.choice(
            [
                [{"role": "user", "content": [{"type": "input_text", "text": self.text()}]}],
                [{"role": "developer", "content": self.text()}],
                [{"type": "message", "role": "system", "content": self.text()}],
                [{"type": "message", "role": "assistant", "content": [said, said]}],
                [{"role": "assistant", "content": self.text()}, call, answer],
                [call, {**call, "call_id": "d"}, answer, {**answer, "call_id": "d"}],
                [{"type": "reasoning", "summary": [{"type": "summary_text", "text": self.text()}]}, call, answer],
            ]
        )

    def _block_turns(self) -> list[Body]:
        use = {"type": "tool_use", "id": "t1", "name": "w", "input": {"town": self.text()}}
        result = self._random.choice(
            [self.text(), [{"type": "text", "text": self.text()}, {"type": "text", "text": "b"}]]
        )
        return self._random.choice(
            [
                [{"role": "user", "content": [{"type": "text", "text": self.text()}, {"type": "text", "text": "b"}]}],
                [
                    {
                        "role": "assistant",
                        "content": [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "a"}],
                    }
                ],
                [
                    {"role": "assistant", "content": [{"type": "text", "text": self.text()}, use]},
                    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": result}]},
                ],
                [{"role": "system", "content": self._random.choice([self.text(), [{"type": "text", "text": "s"}]])}],
            ]
        )

    def _function(self, schema_name: str) -> Body:
        description, strict = self.maybe(self.text, 0.7), self.maybe(lambda: True)
        return {"name": "w", "description": description, schema_name: SCHEMA, "strict": strict}

    def _tool(self) -> Body:
        return {"type": "function", "function": self.given(**self._function("parameters"))}

    def _flat_tool(self) -> Body:
        flat = {"type": "function", **self.given(**self._function("parameters"))}
        named = {"type": "namespace", "name": "n", "description": "d", "tools": [flat]}
        return self._random.choice([flat, flat, named, {"type": "custom", "name": "c", "description": "free"}])


MAKERS: dict[PromptForm, Callable[[Bodies], Body]] = {
    PromptForm.CHAT: Bodies.chat,
    PromptForm.COMPLETION: Bodies.completion,
    PromptForm.RESPONSES: Bodies.response,
    PromptForm.MESSAGES: Bodies.messages,
}


@pytest.fixture(scope="module")
def tokenizer(engine: Any) -> Iterator[LocalTokenizer]:
    loaded = LocalTokenizer.load(Path(engine.tokenizer_path))
    yield loaded
    loaded.close()


@pytest.mark.parametrize("form", MAKERS)
async def test_the_count_of_every_generated_request_is_the_engines_usage(
    engine: Any, tokenizer: LocalTokenizer, form: PromptForm
) -> None:
    bodies = Bodies(seed=6)
    limit = {"max_output_tokens": 16} if form is PromptForm.RESPONSES else {"max_tokens": 1}
    asked = [{"model": engine.model, **limit, **MAKERS[form](bodies)} for _ in range(EACH_FORM)]
    answers = await _answers(engine, form, asked)
    differing = []
    for body, (status, answer) in zip(asked, answers, strict=True):
        assert status == 200, (body, answer)
        usage = answer["usage"]
        engine_tokens = usage.get("prompt_tokens", usage.get("input_tokens"))
        counted = tokenizer.count_now(a_counted_call(form, body), context_tokens=16384).prompt_tokens
        if counted != engine_tokens:
            differing.append((counted, engine_tokens, body))
    assert differing == []


async def _answers(engine: Any, form: PromptForm, asked: list[Body]) -> list[tuple[int, Body]]:
    turns = asyncio.Semaphore(AT_ONCE)
    async with aiohttp.ClientSession() as session:

        async def ask(body: Body) -> tuple[int, Body]:
            async with turns, session.post(engine.base_url + PATHS[form], json=body) as answer:
                return answer.status, await answer.json()

        return await asyncio.gather(*map(ask, asked))
