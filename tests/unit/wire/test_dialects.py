from __future__ import annotations

import pytest

from gateway.wire.dialects import (
    CHAT_COMPLETIONS,
    COMPLETIONS,
    COUNT_TOKENS,
    DETOKENIZE,
    EMBEDDINGS,
    MESSAGES,
    MODEL,
    MODELS,
    RERANK,
    RESPONSE,
    RESPONSE_CANCEL,
    RESPONSES,
    ROUTES,
    SCORE,
    TOKENIZE,
    TRANSCRIPTIONS,
    TRANSLATIONS,
    Dialect,
    PromptForm,
    Route,
    WrongMethod,
    find_route,
)


@pytest.mark.parametrize(
    ("method", "path", "route"),
    [
        ("POST", "/v1/chat/completions", CHAT_COMPLETIONS),
        ("POST", "/v1/completions", COMPLETIONS),
        ("POST", "/v1/messages", MESSAGES),
        ("POST", "/v1/messages/count_tokens", COUNT_TOKENS),
        ("POST", "/v1/responses", RESPONSES),
        ("POST", "/v1/embeddings", EMBEDDINGS),
        ("POST", "/v1/rerank", RERANK),
        ("POST", "/v1/score", SCORE),
        ("POST", "/tokenize", TOKENIZE),
        ("POST", "/detokenize", DETOKENIZE),
        ("POST", "/v1/audio/transcriptions", TRANSCRIPTIONS),
        ("POST", "/v1/audio/translations", TRANSLATIONS),
        ("GET", "/v1/models", MODELS),
    ],
)
def test_an_exact_path_is_its_route(method: str, path: str, route: Route) -> None:
    assert find_route(method, path) is route
    assert route.path == path


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "",
        "/v1",
        "/v1/",
        "/v1/chat/completions/",
        "/v1/messagesX",
        "/v1/messages/",
        "/v1/messages/batches",
        "//v1/completions",
        "/V1/completions",
        "/v1/./completions",
        "/v1/../v1/completions",
        "/v1/completions;x",
        "/v1/%63ompletions",
        "/v1%2Fcompletions",
        "/v1/chat%2Fcompletions",
        "/v1/completions?stream=true",
        "/v1/completions#x",
        "http://host/v1/completions",
        "/invocations",
        "/metrics",
        "/tokenize/",
        "/v1/tokenize",
        "/tokenizer_info",
        "/v1/load_lora_adapter",
        "/sleep",
        "/health",
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_whatever_is_not_spelled_as_a_route_does_not_exist(method: str, path: str) -> None:
    assert find_route(method, path) is None


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "OPTIONS", "post", "CONNECT"])
def test_another_method_on_a_known_path_says_which_one_is_allowed(method: str) -> None:
    assert find_route(method, "/v1/completions") == WrongMethod("POST", Dialect.OPENAI)


def test_a_wrong_method_is_told_on_a_models_path_too() -> None:
    assert find_route("DELETE", "/v1/models/a") == WrongMethod("GET", Dialect.OPENAI)


@pytest.mark.parametrize(
    ("raw_id", "model_id"),
    [
        ("tiny", "tiny"),
        ("org%2Fname", "org/name"),
        ("org/name", "org/name"),
        ("org%2fname-7b.Q4", "org/name-7b.Q4"),
        ("n%C3%A4me", "näme"),
        ("a:b@c", "a:b@c"),
    ],
)
def test_a_models_id_may_hold_slashes_and_goes_on_as_it_was_spelled(raw_id: str, model_id: str) -> None:
    route = find_route("GET", f"/v1/models/{raw_id}")
    assert isinstance(route, Route)
    assert (route.model_id, route.path, route.name) == (model_id, f"/v1/models/{raw_id}", MODEL.name)


@pytest.mark.parametrize(
    "raw_id",
    [
        "",
        "/",
        "a/",
        "/a",
        "a//b",
        "..",
        "a/../b",
        "%2e%2e",
        "a%2F..%2Fb",
        "%00",
        "a%0d%0ab",
        "%ff",
        "%",
        "a b",
        "a?b",
        "%zz",
    ],
)
def test_an_id_that_could_be_read_as_another_path_is_no_model(raw_id: str) -> None:
    assert find_route("GET", f"/v1/models/{raw_id}") is None


def test_every_generation_route_says_how_its_prompt_stands_in_its_body() -> None:
    for route in ROUTES:
        if route.generation:
            assert route.form is not PromptForm.NONE


def test_a_wrong_method_is_told_in_the_dialect_of_its_path() -> None:
    assert find_route("GET", "/v1/messages") == WrongMethod("POST", Dialect.ANTHROPIC)
    assert find_route("GET", "/v1/messages/count_tokens") == WrongMethod("POST", Dialect.ANTHROPIC)


@pytest.mark.parametrize(
    ("method", "path", "template"),
    [
        ("GET", "/v1/responses/resp_0a-B", RESPONSE),
        ("POST", "/v1/responses/resp_0a-B/cancel", RESPONSE_CANCEL),
    ],
)
def test_a_route_about_one_response_holds_its_id(method: str, path: str, template: Route) -> None:
    route = find_route(method, path)
    assert isinstance(route, Route)
    assert (route.response_id, route.path, route.name) == ("resp_0a-B", path, template.name)
    assert not route.generation


@pytest.mark.parametrize(
    "path",
    [
        "/v1/responses/",
        "/v1/responses/a/b",
        "/v1/responses/..",
        "/v1/responses/%61",
        "/v1/responses/a/cancel/",
        "/v1/responses/a/input_items",
    ],
)
def test_whatever_is_no_plain_id_is_no_response(path: str) -> None:
    assert find_route("GET", path) is None


def test_the_methods_of_a_responses_routes_are_told() -> None:
    assert find_route("POST", "/v1/responses/a") == WrongMethod("GET", Dialect.RESPONSES)
    assert find_route("GET", "/v1/responses/a/cancel") == WrongMethod("POST", Dialect.RESPONSES)
