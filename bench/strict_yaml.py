"""Reads a YAML file into a pydantic model, strictly: a key given twice or unknown is an error with its path."""

from __future__ import annotations

from collections.abc import Hashable
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from bench.errors import UsageError

FILE_BYTES_MAX = 1024 * 1024
Model = TypeVar("Model", bound=BaseModel)


class _StrictLoader(yaml.SafeLoader):
    """PyYAML lets the last of two equal keys win; here the second one is an error."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[Hashable] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, Hashable):
                raise yaml.constructor.ConstructorError(None, None, "a key must be a word", key_node.start_mark)
            if key in seen:
                raise yaml.constructor.ConstructorError(None, None, f"key {key!r} twice", key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep)


def read(path: Path, model: type[Model]) -> Model:
    """Raises UsageError: file, key path, problem."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror}). Correct the path.") from error
    if len(raw) > FILE_BYTES_MAX:
        raise UsageError(f"{path}: larger than {FILE_BYTES_MAX} bytes.")
    try:
        value = yaml.load(raw, Loader=_StrictLoader)  # noqa: S506  a SafeLoader with one more check
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise UsageError(f"{path}: line {line}: {error.problem}.") from error
    except (yaml.YAMLError, ValueError) as error:
        raise UsageError(f"{path}: not YAML ({error}).") from error
    return validated(value, model, str(path))


def validated(value: object, model: type[Model], where: str) -> Model:
    """Raises UsageError: where, key path, problem."""
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise UsageError(_first(where, error)) from error


def _first(path: str, error: ValidationError) -> str:
    problems = error.errors(include_url=False, include_input=False)
    first = problems[0]
    key_path = ".".join(str(part) for part in first["loc"]) or "(the whole file)"
    if first["type"] == "extra_forbidden":
        said = "unknown key. Remove it or mend its spelling"
    elif first["type"] == "missing":
        said = "is missing. Add it"
    else:
        said = str(first["msg"]).removeprefix("Value error, ").rstrip(".")
    more = f" ({len(problems) - 1} more {'problem' if len(problems) == 2 else 'problems'})" if len(problems) > 1 else ""
    return f"{path}: {key_path}: {said}.{more}"
