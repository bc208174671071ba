"""A small model's files: a byte-level tokenizer trained on a few lines, and a chat template that renders tools."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from gateway.counting.local import LocalTokenizer

CORPUS = ["the quick brown fox jumps over the lazy dog", "who was ada lovelace", "system user assistant tool"] * 9
SPECIAL = ["<|begin|>", "<|end|>"]
TEMPLATE = """\
{{- bos_token }}
{%- for tool in tools or [] %}
{{- tool | tojson }}
{%- endfor %}
{%- for message in messages %}
{{- message['role'] + ': ' + message['content'] }}
{%- for call in message['tool_calls'] or [] %}
{{- call['function']['name'] + (call['function']['arguments'] | tojson) }}
{%- endfor %}
{{- eos_token }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- 'assistant: ' }}
{%- endif %}
"""


def save_tokenizer(folder: Path) -> None:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=320, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|begin|> $A", special_tokens=[("<|begin|>", tokenizer.token_to_id("<|begin|>"))]
    )
    tokenizer.save(str(folder / "tokenizer.json"))


@pytest.fixture(scope="session")
def _trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    save_tokenizer(folder)
    return folder


@pytest.fixture
def model_folder(_trained: Path, tmp_path: Path) -> Path:
    """A folder of its own for each test, to be changed at will."""
    (tmp_path / "tokenizer.json").write_bytes((_trained / "tokenizer.json").read_bytes())
    config = {"bos_token": "<|begin|>", "eos_token": {"content": "<|end|>"}, "chat_template": TEMPLATE}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    return tmp_path


@pytest.fixture
def tokenizer(model_folder: Path):
    loaded = LocalTokenizer.load(model_folder)
    yield loaded
    loaded.close()
