"""Reads a model: its config.json, and of its folder the size of its weights. Loads none of them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.errors import UsageError
from bench.records.stored import read_json

CONFIG = "config.json"
HEADER_BYTES_MAX = 100_000_000


@dataclass(frozen=True, slots=True)
class Model:
    """config: of the text model. weights_bytes: of all tensors in its safetensors; None: its folder has none.

    about: what of a larger model this is.
    """

    config: dict[str, Any]
    weights_bytes: int | None
    about: str = ""


def read(path: Path) -> Model:
    """A folder of a model, or its config.json. Raises UsageError."""
    file = path / CONFIG if path.is_dir() else path
    config = read_json(file)
    about = ""
    if isinstance(config.get("text_config"), dict) and "num_hidden_layers" not in config:
        outer: dict[str, Any] = {
            name: config[name] for name in ("quantization_config", "torch_dtype", "dtype") if name in config
        }
        about = f"the text model of {config.get('model_type', 'it')}; what sees or hears is not counted"
        config = {**outer, **config["text_config"]}
    return Model(config, _weights_bytes(path) if path.is_dir() else None, about)


def _weights_bytes(folder: Path) -> int | None:
    """What the index says, else the tensors of each file, by their headers."""
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        total = (read_json(index).get("metadata") or {}).get("total_size")
        if isinstance(total, int | float) and total > 0:
            return int(total)
    files = sorted(folder.glob("*.safetensors"))
    return sum(_tensors_bytes(file) for file in files) if files else None


def _tensors_bytes(file: Path) -> int:
    """Safetensors: eight bytes of length, a JSON header of that length, then the tensors."""
    try:
        with file.open("rb") as opened:
            length = int.from_bytes(opened.read(8), "little")
            if not 0 < length <= HEADER_BYTES_MAX:
                raise UsageError(f"{file}: no safetensors. Name the config.json instead.")
            header = json.loads(opened.read(length))
        return max(int(each["data_offsets"][1]) for name, each in header.items() if name != "__metadata__")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"{file}: cannot be read as safetensors ({error}). Name the config.json instead.") from error
