"""What `make run` says once it serves: the keys, a first request, a first measurement, and what is still missing.

Owns the words. Reads and starts nothing.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from deploy.first_files import SERVICE_CLASSES, TENANT, Addresses, Upstream

EMBEDDED = (
    "The engine is the embedded one: a model of vLLM's steps, which makes its answers up. ENGINE_URL=http://host:8000 "
    "puts the gateway in front of a real one; `make engine` starts one on this CPU."
)
LIMITS = "limits: {max_num_batched_tokens: 2048, long_prefill_token_threshold: 640, max_num_seqs: 128}"


@dataclass(frozen=True, slots=True)
class Served:
    """What runs. keys: by the variable that they are shown for, none where they were shown before.

    command: the path of `gateway`. has_limits: whether the configuration says what its engine was started with.
    is_embedded: whether the engine is the emulator.
    """

    addresses: Addresses
    upstream: Upstream
    configuration: Path
    keys_file: Path
    keys: Mapping[str, str]
    command: Path
    has_limits: bool
    is_embedded: bool


def welcome(served: Served) -> str:
    """Lines for a terminal. The commands work from any folder."""
    at = served.addresses
    lines = [f"Serving on {at.public} (metrics and health on {at.ops}). Ctrl-C drains and ends it."]
    if not served.has_limits:
        lines.append(_limits_wanted(served.configuration))
    if served.is_embedded:
        lines.append(EMBEDDED)
    lines += [f"`gateway` is {served.command}. In another terminal:", "", *_keys(served), _first_request(served)]
    lines.append(_first_measurement(served))
    return "\n" + "\n".join(lines) + "\n"


def _keys(served: Served) -> list[str]:
    if served.keys:
        hashed = f"# shown this once: only their hashes are kept, in {served.keys_file}"
        return [hashed, *(f"export {name}={key}" for name, key in served.keys.items())]
    path = shlex.quote(str(served.keys_file))
    return [
        f"# {' and '.join(SERVICE_CLASSES)} were shown when they were made; a new one, in force within 2 s:",
        *(
            f"# {served.command} keys new --service-class {service_class} --tenant {TENANT} --append {path}"
            for service_class in SERVICE_CLASSES.values()
        ),
    ]


def _first_request(served: Served) -> str:
    question = {
        "model": served.upstream.models[0],
        "messages": [{"role": "user", "content": "hello"}],
        "max_tokens": 16,
        "stream": True,
    }
    return (
        f'curl {served.addresses.public}/v1/chat/completions -H "Authorization: Bearer $KEY" '
        f'-H "Content-Type: application/json" -d {shlex.quote(json.dumps(question))}'
    )


def _first_measurement(served: Served) -> str:
    folder = served.upstream.tokenizer_path
    tokenizer = "FOLDER_OF_ITS_TOKENIZER" if folder is None else shlex.quote(str(folder))
    return (
        f"{shlex.quote(str(served.command))} bench run --base-url {served.addresses.public} "
        f"--model {shlex.quote(served.upstream.models[0])} --tokenizer {tokenizer} "
        "--credential short=KEY long=KEY_BATCH --long-tokens 2048 --output-tokens 16 --request-rate 2 --num-prompts 20"
    )


def _limits_wanted(configuration: Path) -> str:
    return (
        f"{configuration} does not say what your engine was started with: until it has `{LIMITS}`, with your numbers, "
        "under the engine, slots are not held to its max_num_seqs, its priority may stay unproved and so unused, and "
        "no promise to short prompts can be checked."
    )
