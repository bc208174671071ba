"""Makes the emulator's tokenizer: a byte-level BPE over the bench's own words, and a plain chat template.

Owns the files in `tokenizer/`, in the layout of a model's folder: a gateway counts with them as with any model's. They
are kept, not made at start: `python -m bench.simulation.emulator.vocabulary` writes them anew.
"""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from bench.corpus.words import WORDS

FOLDER = Path(__file__).with_name("tokenizer")
VOCABULARY_TOKENS = 2048
PREAMBLE = "This text is made up by the emulator."
"""How every answer begins."""
BOS, EOS = "<|begin|>", "<|end|>"
SPECIAL_TOKENS = (BOS, EOS, "<|system|>", "<|user|>", "<|assistant|>", "<|tool|>")
TEMPLATE = """\
{{- bos_token -}}
{%- if tools -%}
<|system|>Tools: {{ tools | tojson }}<|end|>
{%- endif -%}
{%- for message in messages -%}
<|{{ message.role }}|>{{ message.content or '' }}
{%- for call in message.tool_calls or [] -%}
{{ call.function | tojson }}
{%- endfor -%}
<|end|>
{%- endfor -%}
{%- if add_generation_prompt -%}
<|assistant|>
{%- endif -%}
"""
_PUNCTUATION = (".", ",", "?", "!", ":", ";", "'s", '"', "(", ")", "-", "\n", "0", "1", "2", "10", "100")


def trained() -> Tokenizer:
    """Every text has tokens, never more than bytes and the opening one, and most of the bench's words are one."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY_TOKENS,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    # Twice with the space before them, as they stand in prose, and once at the start of a line.
    text = [f" {word}" for word in WORDS] * 2 + list(WORDS) + [word.capitalize() for word in WORDS] + [PREAMBLE] * 9
    tokenizer.train_from_iterator(text + list(_PUNCTUATION), trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", special_tokens=[(BOS, SPECIAL_TOKENS.index(BOS))]
    )
    return tokenizer


def files() -> dict[str, str]:
    """Return the folder's files by name."""
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BOS,
        "eos_token": EOS,
        "clean_up_tokenization_spaces": False,
    }
    return {
        "tokenizer.json": trained().to_str() + "\n",
        "tokenizer_config.json": json.dumps(config, indent=2) + "\n",
        "chat_template.jinja": TEMPLATE,
    }


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name, text in files().items():
        (FOLDER / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
