"""The bodies of vLLM's routes, as far as the emulator reads them; members that it does not know are ignored, as there.

Owns the types of members and their bounds. A value of the wrong type is pydantic's finding, here as in vLLM, so that
the words agree. What vLLM only finds out later (`SamplingParams`) is judged in `asking`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from bench.simulation.emulator.errors import invalid

Int64 = Annotated[int, Field(ge=-(2**63), le=2**63 - 1)]
TokenId = Annotated[int, Field(ge=0)]
Stop = str | Annotated[list[str], Field(max_length=1024)] | None


class Body(BaseModel):
    """What every route has."""

    model_config = ConfigDict(extra="allow")

    model: str | None = None


class StreamOptions(BaseModel):
    """What a stream tells beside its text."""

    include_usage: bool | None = False
    continuous_usage_stats: bool | None = False


class Function(BaseModel):
    """What a tool is called with."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(BaseModel):
    """One tool, as the template is shown it."""

    type: Literal["function"] = "function"
    function: Function

    def shown(self) -> dict[str, Any]:
        function = self.function.model_dump()
        if function["strict"] is None:
            del function["strict"]
        return {"type": self.type, "function": function}


class Sampled(Body):
    """What chat and completions have in common."""

    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    seed: Int64 | None = None
    stop: Stop = []
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    stop_token_ids: list[int] | None = []
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    min_tokens: int = 0
    priority: Int64 = 0
    cache_salt: str | None = None
    return_token_ids: bool | None = None
    truncate_prompt_tokens: Annotated[int, Field(ge=-1, le=2**63 - 1)] | None = None

    @model_validator(mode="before")
    @classmethod
    def _stream_options_want_a_stream(cls, members: Any) -> Any:
        if isinstance(members, dict) and members.get("stream_options") and not members.get("stream"):
            raise invalid("Stream options can only be defined when `stream=True`.", "stream_options")
        return members


class ChatBody(Sampled):
    """POST /v1/chat/completions."""

    messages: list[dict[str, Any]]
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    n: int | None = 1
    tools: list[Tool] | None = None
    tool_choice: Any = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    add_special_tokens: bool = False
    chat_template_kwargs: dict[str, Any] | None = None


class CompletionBody(Sampled):
    """POST /v1/completions."""

    prompt: list[TokenId] | list[list[TokenId]] | str | list[str] | None = None
    echo: bool | None = False
    max_tokens: int | None = 16
    n: int = 1
    add_special_tokens: bool = True

    @model_validator(mode="before")
    @classmethod
    def _prompt_is_there(cls, members: Any) -> Any:
        if isinstance(members, dict) and members.get("prompt") in (None, ""):
            raise invalid("Either prompt or prompt_embeds must be provided and non-empty.", "prompt")
        return members


class AnthropicBlock(BaseModel):
    """A part of a message; only text is told apart."""

    model_config = ConfigDict(extra="allow")

    type: str
    text: str | None = None


class AnthropicMessage(BaseModel):
    """One turn."""

    role: str
    content: str | list[AnthropicBlock]


class CountTokensBody(BaseModel):
    """POST /v1/messages/count_tokens."""

    model: str
    messages: list[AnthropicMessage]
    system: str | list[AnthropicBlock] | None = None


def _positive(value: int) -> int:
    if value < 1:
        raise ValueError("max_tokens must be positive")
    return value


class MessagesBody(CountTokensBody):
    """POST /v1/messages."""

    max_tokens: Annotated[int, AfterValidator(_positive)]
    stop_sequences: list[str] | None = None
    stream: bool | None = False
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    cache_salt: Annotated[str, Field(min_length=1, max_length=1024)] | None = None


class ResponsesBody(Body):
    """POST /v1/responses, with text alone."""

    input: str | list[dict[str, Any]]
    instructions: str | None = None
    background: bool | None = False
    max_output_tokens: int | None = None
    previous_response_id: str | None = None
    stream: bool | None = False
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    ignore_eos: bool = False
    priority: Int64 = 0
    cache_salt: str | None = None


class TokenizeBody(Body):
    """POST /tokenize with a text."""

    prompt: str
    add_special_tokens: bool = True
    return_token_strs: bool | None = False


class TokenizeChatBody(Body):
    """POST /tokenize with a conversation."""

    messages: list[dict[str, Any]]
    tools: list[Tool] | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    add_special_tokens: bool = False
    return_token_strs: bool | None = False
    chat_template_kwargs: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        if (
            self.continue_final_message
            and "add_generation_prompt" in self.model_fields_set
            and self.add_generation_prompt
        ):
            raise invalid("Cannot set both `continue_final_message` and `add_generation_prompt` to True.")
        return self


class DetokenizeBody(Body):
    """POST /detokenize."""

    tokens: list[TokenId]
