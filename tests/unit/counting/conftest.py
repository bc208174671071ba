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
    config = {"bos_token": "<|begin|>", "eos_token": {"content": "<|end|>"}, "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture
def model_folder(_trained: Path, tmp_path: Path) -> Path:
    """A folder of its own for each test, to be changed at will."""
    for file in _trained.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    return tmp_path


@pytest.fixture(scope="session")
def tokenizer(_trained: Path):
    loaded = LocalTokenizer.load(_trained)
    yield loaded
    loaded.close()
