"""The served model's own tokenizer and chat template, from a folder in the Hugging Face layout.

Counts as vLLM does: completions with the tokenizer's special tokens, chat after the template and without them.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, NoReturn

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer as FastTokenizer

from bench.errors import UsageError

Count = Callable[[str], int]


class PromptForm(StrEnum):
    """The OpenAI route that a prompt is sent to."""

    CHAT = "chat"
    COMPLETIONS = "completions"


@dataclass(frozen=True, slots=True)
class ServedTokenizer:
    """A loaded tokenizer. sha256 covers every file that decides a count."""

    fast: FastTokenizer
    template: jinja2.Template | None
    special_tokens: dict[str, str]
    sha256: str
    folder: Path

    def count_for(self, form: PromptForm) -> Count:
        """The prompt tokens that the engine will count for a text; raises UsageError where chat has no template."""
        if form is PromptForm.COMPLETIONS:
            return lambda text: len(self.fast.encode(text))
        template = self.template
        if template is None:
            raise UsageError(f"{self.folder}: no chat template. Give a folder with one, or --endpoint completions.")

        def count_chat(text: str) -> int:
            messages = [{"role": "user", "content": text}]
            rendered = template.render(messages=messages, add_generation_prompt=True, **self.special_tokens)
            return len(self.fast.encode(rendered, add_special_tokens=False))

        return count_chat


def load(folder: Path) -> ServedTokenizer:
    """Read tokenizer.json, tokenizer_config.json and chat_template.jinja; raises UsageError naming the file."""
    path = folder / "tokenizer.json"
    raw = _read(path)
    if raw is None:
        raise UsageError(f"{path}: not there. --tokenizer names the folder of the served model's tokenizer.")
    try:
        fast = FastTokenizer.from_str(raw.decode("utf-8"))
    except Exception as error:  # tokenizers raises bare Exception for every malformed file
        raise UsageError(f"{path}: not a tokenizer ({error}).") from error
    fast.no_truncation()
    fast.no_padding()
    config_raw = _read(folder / "tokenizer_config.json") or b"{}"
    template_raw = _read(folder / "chat_template.jinja")
    try:
        config = json.loads(config_raw)
    except ValueError as error:
        raise UsageError(f"{folder / 'tokenizer_config.json'}: not JSON ({error}).") from error
    source = template_raw.decode("utf-8") if template_raw is not None else _template_in(config)
    digest = hashlib.sha256(b"\0".join((raw, config_raw, template_raw or b""))).hexdigest()
    return ServedTokenizer(
        fast=fast,
        template=None if source is None else _compile(source, folder),
        special_tokens=_special_tokens(config),
        sha256=digest,
        folder=folder,
    )


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror}).") from error


def _template_in(config: dict[str, Any]) -> str | None:
    """The template inside tokenizer_config.json: a string, or a list of named ones of which `default` is meant."""
    template = config.get("chat_template")
    if isinstance(template, list):
        template = next((each["template"] for each in template if each.get("name") == "default"), None)
    return template if isinstance(template, str) else None


def _special_tokens(config: dict[str, Any]) -> dict[str, str]:
    tokens: dict[str, str] = {}
    for name in ("bos_token", "eos_token", "unk_token", "pad_token"):
        value = config.get(name)
        text = value.get("content") if isinstance(value, dict) else value
        if isinstance(text, str):
            tokens[name] = text
    return tokens


def _compile(source: str, folder: Path) -> jinja2.Template:
    def raise_exception(message: str) -> NoReturn:
        raise jinja2.TemplateError(message)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = lambda value, **options: json.dumps(value, ensure_ascii=False, **options)
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = time.strftime
    try:
        return environment.from_string(source)
    except jinja2.TemplateError as error:
        raise UsageError(f"{folder}: the chat template does not compile ({error}).") from error
