"""A served model's tokenizer and chat templates, from its folder, as the engine's own loader reads them.

Owns which files are read, which of two wins, and what cannot be counted from files. Reads local files once, at start;
never downloads, never runs code of the model's, and never goes on with half of what it needs.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer

DEFAULT_TEMPLATE = "default"
TOOLS_TEMPLATE = "tool_use"
FINGERPRINT_PREFIX = "sha256:"

# Models whose prompts the engine builds in code of its own instead of by a template.
_OWN_PROMPT_MODELS = frozenset({"gpt_oss", "kimi_k3", "deepseek_v32", "deepseek_v4", "deepseek_v41", "inkling"})
_OWN_TOKENIZER_FILES = ("tekken.json", "tokenizer.model.v*")
_READ_FILES = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"),
    *("chat_template.jinja", "chat_template.json"),
)
_NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


class TokenizerUnusable(Exception):  # noqa: N818  what was found in the folder
    """The folder cannot serve to count. `problem` says what is wrong, `fix` what helps."""

    def __init__(self, path: Path, problem: str, fix: str) -> None:
        super().__init__(f"{path}: {problem}. {fix}.")
        self.path = path
        self.problem = problem
        self.fix = fix


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """What counting needs of one model. templates: by name, empty where the model has none.

    special_tokens: the named tokens that a template may use as variables, e.g. bos_token.
    fingerprint: SHA-256, in hexadecimal, over all files that decide a count.
    """

    tokenizer: Tokenizer
    templates: Mapping[str, str]
    special_tokens: Mapping[str, str]
    fingerprint: str


def read_model_files(path: Path, revision: str | None = None) -> ModelFiles:
    """The files of a model's folder, or of one revision's snapshot in a model cache. Raises TokenizerUnusable.

    A revision that begins with `sha256:` pins the files themselves: it is compared with their fingerprint.
    """
    folder = _folder(path, revision)
    _refuse_own_prompts(folder)
    file = folder / "tokenizer.json"
    if not file.is_file():
        raise TokenizerUnusable(file, "no such file", "Copy the model's tokenizer.json there, or use `kind: engine`")
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises bare Exception for every fault of the file
        raise TokenizerUnusable(file, f"cannot be read: {error}", "Copy it from the model again") from error
    # The file may carry settings of a training run; the engine sets its own for every prompt.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    config = _read_object(folder / "tokenizer_config.json")
    if "added_tokens_decoder" not in config:
        config |= _read_object(folder / "special_tokens_map.json")
    special_tokens = _special_tokens(config)
    _add_missing_tokens(tokenizer, config, special_tokens)
    templates = _templates(folder, config)
    fingerprint = _fingerprint(folder)
    if revision is not None and revision.startswith(FINGERPRINT_PREFIX):
        _compare(folder, revision.removeprefix(FINGERPRINT_PREFIX), fingerprint)
    return ModelFiles(tokenizer, templates, special_tokens, fingerprint)


def _fingerprint(folder: Path) -> str:
    """Of the files as they lie there, whatever version of a library reads them."""
    digest = hashlib.sha256()
    files = [folder / name for name in _READ_FILES]
    files += sorted((folder / "additional_chat_templates").glob("*.jinja"))
    for file in files:
        if file.is_file():
            content = file.read_bytes()
            digest.update(f"{file.name} {len(content)}\n".encode())
            digest.update(content)
    return digest.hexdigest()


def _compare(folder: Path, pinned: str, found: str) -> None:
    if pinned != found:
        problem = f"the files are not the pinned ones: their fingerprint is {FINGERPRINT_PREFIX}{found}"
        raise TokenizerUnusable(folder, problem, "Restore them, or pin these where they are what the engine serves")


def _folder(path: Path, revision: str | None) -> Path:
    snapshots = path / "snapshots"
    if revision is None or revision.startswith(FINGERPRINT_PREFIX) or not snapshots.is_dir():
        return path
    snapshot = snapshots / revision
    if not snapshot.is_dir():
        raise TokenizerUnusable(snapshot, "no such revision", "Name a revision that the model cache holds")
    return snapshot


def _refuse_own_prompts(folder: Path) -> None:
    model_type = _read_object(folder / "config.json").get("model_type")
    has_own_file = any(next(folder.glob(pattern), None) for pattern in _OWN_TOKENIZER_FILES)
    if model_type in _OWN_PROMPT_MODELS or has_own_file:
        problem = (
            "the engine builds this model's prompts without a chat template, so that files cannot tell their length"
        )
        raise TokenizerUnusable(folder, problem, "Use `kind: engine`")


def _templates(folder: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """Files of their own win over the configuration; a processor's file is the last resort."""
    templates = {}
    own_file = folder / "chat_template.jinja"
    if own_file.is_file():
        templates[DEFAULT_TEMPLATE] = own_file.read_text(encoding="utf-8")
    for file in sorted((folder / "additional_chat_templates").glob("*.jinja")):
        templates[file.stem] = file.read_text(encoding="utf-8")
    if templates:
        return templates
    stated = config.get("chat_template") or _read_object(folder / "chat_template.json").get("chat_template")
    if isinstance(stated, str):
        return {DEFAULT_TEMPLATE: stated}
    return {entry["name"]: entry["template"] for entry in stated or ()}


def _special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """The named tokens in their usual order, then those that only this model names."""
    extra = config.get("extra_special_tokens")
    named = [name for name in config if name.endswith("_token") and name not in _NAMED_TOKENS]
    entries = [(name, config.get(name)) for name in (*_NAMED_TOKENS, *named)]
    entries += list(extra.items()) if isinstance(extra, dict) else []
    tokens = {name: value.get("content") if isinstance(value, dict) else value for name, value in entries}
    return {name: token for name, token in tokens.items() if isinstance(token, str)}


def _add_missing_tokens(tokenizer: Tokenizer, config: Mapping[str, Any], special_tokens: Mapping[str, str]) -> None:
    """Tokens that the configuration knows and tokenizer.json does not are single tokens all the same."""
    known = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    added = config.get("added_tokens_decoder") or {}
    for _, token in sorted(added.items(), key=lambda entry: int(entry[0])):
        if token["content"] not in known:
            flags = {
                name: bool(token.get(name)) for name in ("lstrip", "rstrip", "single_word", "normalized", "special")
            }
            tokenizer.add_tokens([AddedToken(token["content"], **flags)])
            known.add(token["content"])
    extra = config.get("extra_special_tokens") or config.get("additional_special_tokens") or ()
    names = [
        *special_tokens.values(),
        *(entry for entry in extra if isinstance(entry, str) and isinstance(extra, list)),
    ]
    tokenizer.add_tokens([AddedToken(name, special=True, normalized=False) for name in names if name not in known])


def _read_object(file: Path) -> dict[str, Any]:
    """A JSON file's object; empty where there is no such file."""
    if not file.is_file():
        return {}
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise TokenizerUnusable(file, f"is not JSON: {error}", "Copy it from the model again") from error
    if not isinstance(value, dict):
        raise TokenizerUnusable(file, "does not hold an object", "Copy it from the model again")
    return value
