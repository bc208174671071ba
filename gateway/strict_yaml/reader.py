"""Files into models: the bytes, bounded, then the document, then the model.

Owns the order of the checks. Writes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from gateway.strict_yaml import document
from gateway.strict_yaml.document import Value
from gateway.strict_yaml.errors import ConfigError, Fault
from gateway.strict_yaml.explain import explained
from gateway.strict_yaml.fields import FOLDER_KEY

FILE_BYTES_MAX = 4 * 1024 * 1024

M = TypeVar("M", bound=BaseModel)
Misreading = Callable[[Value], Fault | None]


def _none(_: Value) -> None:
    return None


def read(path: Path, model: type[M], *, misreading: Misreading = _none) -> M:
    """The file as `model`; raises ConfigError. Paths in it are relative to its folder."""
    return parse(read_bytes(path), file=str(path), model=model, folder=path.parent, misreading=misreading)


def read_bytes(path: Path) -> bytes:
    """The whole file; raises ConfigError where it is missing, unreadable or over FILE_BYTES_MAX."""
    try:
        with path.open("rb") as file:
            raw = file.read(FILE_BYTES_MAX + 1)
    except FileNotFoundError:
        raise ConfigError(str(path), "", "does not exist", "Create it, or correct the path") from None
    except IsADirectoryError:
        raise ConfigError(str(path), "", "is a folder", "Give the path of a file") from None
    except PermissionError:
        raise ConfigError(str(path), "", "may not be read", "Give this user permission to read it") from None
    except OSError as error:
        raise ConfigError(str(path), "", f"cannot be read ({error.strerror})", "Correct the path") from error
    if len(raw) > FILE_BYTES_MAX:
        raise ConfigError(str(path), "", f"is larger than {FILE_BYTES_MAX} bytes", "Make it smaller")
    return raw


def parse(raw: bytes, *, file: str, model: type[M], folder: Path | None = None, misreading: Misreading = _none) -> M:
    """`raw` as `model`; raises ConfigError naming `file`. Paths in it are relative to `folder`.

    misreading: the one fault to tell of a document that was meant in another form, instead of all that follow from it.
    """
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(file, "", f"is not UTF-8 (byte {error.start})", "Save it as UTF-8") from None
    value = document.load(text, file)
    try:
        # Validated as JSON: there a list may become a tuple and text a path, while types stay strict.
        return model.model_validate_json(json.dumps(value), context={FOLDER_KEY: folder})
    except ValidationError as error:
        meant = misreading(value)
        if meant is not None:
            raise ConfigError(file, meant.key_path, meant.problem, meant.fix) from None
        raise explained(error, value, model, file) from None
