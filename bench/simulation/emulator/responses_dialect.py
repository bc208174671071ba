"""How an answer is written on /v1/responses: vLLM's events of one text message, or one body.

Owns these shapes. Keeps nothing: a response cannot be asked for again, as in vLLM without its store.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from bench.simulation.emulator.dialects import named
from bench.simulation.emulator.errors import ApiError
from bench.simulation.emulator.spoken import Piece, Spoken


class Responses:
    """One answer. max_output_tokens: as resolved."""

    def __init__(self, spoken: Spoken, *, max_output_tokens: int | None) -> None:
        self.spoken = spoken
        self._max_output_tokens = max_output_tokens
        self._item_id = spoken.request_id.replace("resp_", "msg_")
        self._number = 0
        self._text = ""
        self._begun = False
        self._last: Piece | None = None

    def opening(self) -> bytes:
        return b"".join(
            [
                self._event(f"response.{state}", response=self._response("in_progress"))
                for state in ("created", "in_progress")
            ]
        )

    def pieces(self, pieces: Iterable[Piece]) -> bytes:
        said = b""
        for piece in pieces:
            if not self._begun:
                self._begun = True
                said += self._event("response.output_item.added", output_index=0, item=self._item("in_progress", []))
                said += self._part("response.content_part.added", "")
            if piece.text:
                self._text += piece.text
                said += self._of_part("response.output_text.delta", delta=piece.text, logprobs=[])
            self._last = piece
        return said

    def closing(self) -> bytes:
        done = self._of_part("response.output_text.done", text=self._text, logprobs=[])
        done += self._part("response.content_part.done", self._text)
        item = self._item("completed", [_text_part(self._text)])
        done += self._event("response.output_item.done", output_index=0, item=item)
        return done + self._event("response.completed", response=self._finished())

    def broken(self, error: ApiError) -> bytes | None:
        del error  # vLLM just cuts
        return None

    def body(self, pieces: list[Piece]) -> dict[str, Any]:
        (self._last,) = pieces
        self._text = self._last.text
        return self._finished()

    def _finished(self) -> dict[str, Any]:
        is_cut = self._last is not None and self._last.finish == "length"
        response = self._response("incomplete" if is_cut else "completed")
        response["output"] = [self._item("completed", [_text_part(self._text)])]
        response["incomplete_details"] = {"reason": "max_output_tokens"} if is_cut else None
        prompt_tokens, output_tokens = len(self.spoken.prompts[0]), self.spoken.output_tokens
        response["usage"] = {
            "input_tokens": prompt_tokens,
            "input_tokens_details": {"cached_tokens": self.spoken.cached_tokens},
            "output_tokens": output_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": prompt_tokens + output_tokens,
        }
        return response

    def _response(self, status: str) -> dict[str, Any]:
        return {
            "id": self.spoken.request_id,
            "created_at": self.spoken.created,
            "incomplete_details": None,
            "instructions": None,
            "metadata": None,
            "model": self.spoken.model,
            "object": "response",
            "output": [],
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
            "background": False,
            "max_output_tokens": self._max_output_tokens,
            "previous_response_id": None,
            "service_tier": "auto",
            "status": status,
            "truncation": "disabled",
            "usage": None,
        }

    def _item(self, status: str, content: list[dict[str, Any]]) -> dict[str, Any]:
        return {"id": self._item_id, "content": content, "role": "assistant", "status": status, "type": "message"}

    def _part(self, kind: str, text: str) -> bytes:
        return self._of_part(kind, part=_text_part(text))

    def _of_part(self, kind: str, **members: Any) -> bytes:
        return self._event(kind, item_id=self._item_id, output_index=0, content_index=0, **members)

    def _event(self, kind: str, **members: Any) -> bytes:
        number, self._number = self._number, self._number + 1
        return named({"type": kind, "sequence_number": number, **members})


def _text_part(text: str) -> dict[str, Any]:
    return {"annotations": [], "text": text, "type": "output_text", "logprobs": None}
