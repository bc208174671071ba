"""What every configuration model is made of: strict, frozen, unknown keys refused; safe names; paths.

Owns the base class and the shared field types. Opens no file.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationInfo, WithJsonSchema

from gateway.strict_yaml.errors import problem

NAME_PATTERN = r"^[A-Za-z0-9._-]{1,64}$"
NAME_RULE = "Use 1 to 64 of the characters A-Z a-z 0-9 . _ -, and not the word none"
FOLDER_KEY = "folder"


class Strict(BaseModel):
    """A mapping of a configuration file. Types are not coerced: "5" is no number, 5 is no text."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False)


def is_name(text: str) -> bool:
    """Whether `text` may name a class, tenant, pool, engine, region or key.

    Names go into metric labels, response headers and log lines, where a closed alphabet is harmless; the label
    `none` there means that something is not known yet.
    """
    return re.fullmatch(NAME_PATTERN, text) is not None and text != "none"


def _checked_name(name: str) -> str:
    if not is_name(name):
        raise problem("is not a valid name", fix=NAME_RULE)
    return name


Name = Annotated[str, AfterValidator(_checked_name), WithJsonSchema({"type": "string", "pattern": NAME_PATTERN})]


def _resolved(path: Path, info: ValidationInfo) -> Path:
    folder = info.context.get(FOLDER_KEY) if info.context else None
    return path if folder is None else Path(folder) / path


LocalPath = Annotated[Path, AfterValidator(_resolved)]
"""A path in a file, read relative to the folder of that file."""


def means_a_file(name_or_path: str) -> bool:
    """Whether a setting that takes a name or a file means a file: it has a folder, or a YAML ending."""
    return "/" in name_or_path or name_or_path.endswith((".yaml", ".yml"))
