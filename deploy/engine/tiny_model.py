"""Writes the tiny model: a Llama with random but fixed weights, and a byte-level BPE tokenizer trained on the spot.

Owns the files of a model folder, the same bytes at each build. Needs `tokenizers` and nothing else: weights are
written in the safetensors format directly. Never downloads anything.

The model writes nonsense. What it is for is its shape: real prefill and decode work, at a size two cores can carry.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

HIDDEN_SIZE = 256
INTERMEDIATE_SIZE = 512
LAYERS = 4
HEADS = 1
KV_HEADS = 1
HEAD_SIZE = 64
POSITIONS_MAX = 16384
VOCABULARY_TOKENS_MAX = 4096
WEIGHTS_SEED = 20_260_101
TEXT_SEED = 7

BOS, EOS = "<|begin|>", "<|end|>"
SPECIAL_TOKENS = (BOS, EOS, "<|system|>", "<|user|>", "<|assistant|>", "<|tool|>")

WORDS = """
the of and to in is that for it as with was on be by at this are from or have an they which one you were all there
would their we him been has when who will no more if out so up said what its about than into them can only other time
new some could these two may first then do any like my now over such our man me even most made after also did many off
before must well back through years much where your way down should because long each just state people those too how
day good make world see work life never being under us same another know while last might great year since against go
came right used take three states himself few house use during without again place around small however home found
request response prompt token model engine queue class short long wait limit budget order answer question server
service weather city north south east west water light letter number paper river table window morning evening music
garden bridge mountain island market forest winter summer spring autumn silver golden quiet gentle careful simple
measure reason system memory step batch schedule priority stream latency second minute hour deadline tenant window
""".split()  # noqa: SIM905 - a page of words is read more easily than a list of them

SCRAPS = (
    (
        '{"type": "function", "function": {"name": "lookup", "description": "Find a fact.", "parameters": '
        '{"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}}}'
    ),
    '{"name": "lookup", "arguments": {"query": "the weather in the city"}}',
    "def answer(question: str) -> str:\n    return table[question]\n",
    "These tools may be called. Answer with one JSON object to call one.",
    "You are a careful assistant. Keep the answer short.",
    "0 1 2 3 4 5 6 7 8 9 10 16 32 64 100 128 256 512 640 1000 1024 2048 4096 8192",
)


def build(folder: Path, chat_template: str) -> None:
    """Write a whole model folder. The folder must exist; files in it are overwritten."""
    tokenizer = trained_tokenizer()
    tokenizer.save(str(folder / "tokenizer.json"))
    vocabulary_size = tokenizer.get_vocab_size()
    special_ids = {token: number for number, token in enumerate(SPECIAL_TOKENS)}
    _write_json(folder / "tokenizer_config.json", _tokenizer_config())
    (folder / "chat_template.jinja").write_text(chat_template, encoding="utf-8")
    _write_json(folder / "config.json", _model_config(vocabulary_size, special_ids[BOS], special_ids[EOS]))
    write_weights(folder / "model.safetensors", vocabulary_size, silent_rows=frozenset(special_ids.values()))


def trained_tokenizer() -> Tokenizer:
    """A byte-level BPE: every text has tokens, and never more tokens than bytes plus the opening one."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY_TOKENS_MAX,
        special_tokens=list(SPECIAL_TOKENS),  # they take the first ids, in this order
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        min_frequency=2,
        show_progress=False,
    )
    tokenizer.train_from_iterator(training_text(), trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", special_tokens=[(BOS, SPECIAL_TOKENS.index(BOS))]
    )
    return tokenizer


def training_text() -> Iterator[str]:
    """Lines of made-up prose, common words more often than rare ones, and some JSON and code."""
    dice = random.Random(TEXT_SEED)  # noqa: S311 - a seeded generator, not a secret
    weights = [1.0 / (rank + 5) for rank in range(len(WORDS))]
    for _ in range(4000):
        words = dice.choices(WORDS, weights, k=dice.randint(4, 14))
        yield " ".join(words).capitalize() + dice.choice((". ", "? ", ", ", ".\n"))
    for scrap in SCRAPS:
        for _ in range(20):
            yield scrap


def write_weights(path: Path, vocabulary_size: int, silent_rows: frozenset[int]) -> None:
    """All tensors as bf16, uniform around zero with variance 1/fan_in.

    silent_rows: vocabulary ids whose output row is zero, so that a greedy run never picks them: the special tokens.
    A run at temperature 0 therefore goes to the output length that was asked for.
    """
    dice = random.Random(WEIGHTS_SEED)  # noqa: S311 - a seeded generator, not a secret
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    parts: list[bytes] = []
    offset = 0
    for name, shape in tensor_shapes(vocabulary_size):
        data = _ones(shape[0]) if len(shape) == 1 else _uniform(dice, shape)
        if name == "lm_head.weight":
            data = _with_zero_rows(data, shape[1], silent_rows)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
        parts.append(data)
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)  # tensors begin at a multiple of eight
    with path.open("wb") as file:
        file.write(len(head).to_bytes(8, "little"))
        file.write(head)
        file.writelines(parts)


def tensor_shapes(vocabulary_size: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield "model.embed_tokens.weight", (vocabulary_size, HIDDEN_SIZE)
    for layer in range(LAYERS):
        at = f"model.layers.{layer}"
        yield f"{at}.input_layernorm.weight", (HIDDEN_SIZE,)
        yield f"{at}.self_attn.q_proj.weight", (HEADS * HEAD_SIZE, HIDDEN_SIZE)
        yield f"{at}.self_attn.k_proj.weight", (KV_HEADS * HEAD_SIZE, HIDDEN_SIZE)
        yield f"{at}.self_attn.v_proj.weight", (KV_HEADS * HEAD_SIZE, HIDDEN_SIZE)
        yield f"{at}.self_attn.o_proj.weight", (HIDDEN_SIZE, HEADS * HEAD_SIZE)
        yield f"{at}.post_attention_layernorm.weight", (HIDDEN_SIZE,)
        yield f"{at}.mlp.gate_proj.weight", (INTERMEDIATE_SIZE, HIDDEN_SIZE)
        yield f"{at}.mlp.up_proj.weight", (INTERMEDIATE_SIZE, HIDDEN_SIZE)
        yield f"{at}.mlp.down_proj.weight", (HIDDEN_SIZE, INTERMEDIATE_SIZE)
    yield "model.norm.weight", (HIDDEN_SIZE,)
    yield "lm_head.weight", (vocabulary_size, HIDDEN_SIZE)


def _uniform(dice: random.Random, shape: tuple[int, ...]) -> bytes:
    """bf16 values from one random byte each, by two byte tables: exact on every machine, and quick without numpy."""
    rows, fan_in = shape
    bound = (3.0 / fan_in) ** 0.5
    values = [_bf16((byte - 127.5) / 127.5 * bound) for byte in range(256)]
    raw = dice.randbytes(rows * fan_in)
    data = bytearray(2 * len(raw))
    data[0::2] = raw.translate(bytes(value & 0xFF for value in values))
    data[1::2] = raw.translate(bytes(value >> 8 for value in values))
    return bytes(data)


def _bf16(value: float) -> int:
    import struct

    (bits,) = struct.unpack("<I", struct.pack("<f", value))
    return int(bits) >> 16


def _ones(count: int) -> bytes:
    return _bf16(1.0).to_bytes(2, "little") * count


def _with_zero_rows(data: bytes, columns: int, rows: frozenset[int]) -> bytes:
    out = bytearray(data)
    for row in rows:
        out[row * columns * 2 : (row + 1) * columns * 2] = bytes(columns * 2)
    return bytes(out)


def _model_config(vocabulary_size: int, bos_id: int, eos_id: int) -> dict[str, object]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": vocabulary_size,
        "hidden_size": HIDDEN_SIZE,
        "intermediate_size": INTERMEDIATE_SIZE,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_SIZE,
        "max_position_embeddings": POSITIONS_MAX,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
        "bos_token_id": bos_id,
        "eos_token_id": eos_id,
        "torch_dtype": "bfloat16",
    }


def _tokenizer_config() -> dict[str, object]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BOS,
        "eos_token": EOS,
        "model_max_length": POSITIONS_MAX,
        "clean_up_tokenization_spaces": False,
    }


def _write_json(path: Path, value: dict[str, object]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the tiny model.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("chat_template", type=Path)
    asked = parser.parse_args()
    build(asked.folder, asked.chat_template.read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
