"""Whether a model and its load fit into an engine's memory: weights, run-time overhead, KV cache, what is left. Pure.

As vLLM 0.32 shares the memory out: its part of the GPU, less the weights, less what a step and the CUDA graphs take, is
the KV cache. Weights and KV follow from the config; the overhead is a rule of thumb, and only a start shows it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.errors import UsageError
from bench.sizing.families import FAMILIES, Family, whole, whole_or
from bench.sizing.kv import KvCache, kv_cache
from bench.sizing.model import Model
from bench.sizing.parameters import Layers, Part, parts
from bench.sizing.quantization import stored

GIB = 2**30
TYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
KV_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1}
OTHERWISE = 0.02  # of weights as stored and as counted: from here on it is said
STEPS_IN_FLIGHT = 2  # asynchronous scheduling
# Of the GPU's memory from so many GiB on, what vLLM's server takes for itself: tokens of a step, sequences.
STEP_DEFAULTS = ((160, 16384, 1024), (70, 8192, 1024), (0, 2048, 256))
CONTEXT_BYTES = int(1.0 * GIB)  # CUDA's context, libraries and graphs
COLLECTIVE_BYTES = int(0.5 * GIB)  # buffers of all-reduce, with more than one GPU


@dataclass(frozen=True, slots=True)
class Ask:
    """What it is to run on, and with how much. kv_memory_bytes: stated instead of what is left (on a CPU always)."""

    gpu_memory_bytes: int | None
    kv_memory_bytes: int | None
    utilization: float
    dtype: str
    kv_dtype: str
    tensor_parallel: int
    context_tokens: int | None
    sequences: int | None
    block_tokens: int
    step_tokens: int | None
    sequences_max: int | None


@dataclass(frozen=True, slots=True)
class Estimate:
    """Bytes are of one GPU. parameters: of all; None: the architecture is not known. kv_bytes: for the cache."""

    ask: Ask
    parameters: Sequence[Part] | None
    dtype: str
    weights_said: str
    weights_bytes: int
    overhead_bytes: int
    kv: KvCache
    kv_bytes: int
    context_tokens: int
    notes: Sequence[str]

    @property
    def blocks(self) -> int:
        return self.kv.blocks_in(self.kv_bytes)

    @property
    def sequences(self) -> int:
        """Of the whole context, at once."""
        return self.kv.sequences_in(self.kv_bytes, self.context_tokens)

    @property
    def printed(self) -> tuple[int, float]:
        """What vLLM prints at its start of such a cache: tokens, and sequences of the whole context, in parts."""
        sequences = self.blocks / self.kv.blocks_of(self.context_tokens)
        return int(sequences * self.context_tokens), sequences

    @property
    def asked_sequences(self) -> int:
        return self.ask.sequences or 1

    @property
    def needed_bytes(self) -> int:
        """Of KV, by the intended sequences at their full length."""
        return self.asked_sequences * self.kv.blocks_of(self.context_tokens) * self.kv.block_bytes

    @property
    def left_bytes(self) -> int:
        """The margin; less than 0 where it does not fit."""
        return self.kv_bytes - self.kv.block_bytes - self.needed_bytes

    @property
    def fits(self) -> bool:
        return self.left_bytes >= 0


def estimate(model: Model, ask: Ask) -> Estimate:
    """Raises UsageError where the config does not say enough, or says what is not known here."""
    try:
        return _estimate(model, ask)
    except KeyError as error:
        raise UsageError(f"config.json: {error} is missing. Name the config of the whole text model.") from error
    except (TypeError, ValueError) as error:
        raise UsageError(f"config.json: a value is not of its kind ({error}).") from error


def _estimate(model: Model, ask: Ask) -> Estimate:
    config, notes = model.config, [model.about] if model.about else []
    family = _family(model, notes)
    dtype = _dtype(config, ask.dtype, notes)
    shape = Layers(family, config)
    _check_division(shape, ask.tensor_parallel)
    step_tokens, sequences_max = _step(ask)
    kv = kv_cache(
        family,
        config,
        value_bytes=KV_BYTES[dtype if ask.kv_dtype == "auto" else ask.kv_dtype],
        block_tokens=ask.block_tokens,
        tensor_parallel=ask.tensor_parallel,
        in_flight_tokens=STEPS_IN_FLIGHT * step_tokens,
    )
    counted = parts(family, config) if config.get("model_type") in FAMILIES else None
    said, weights = _weights(model, counted, TYPE_BYTES[dtype], ask.tensor_parallel, notes)
    overhead = _overhead(shape, TYPE_BYTES[dtype], ask.tensor_parallel, step_tokens, sequences_max)
    context = ask.context_tokens or whole(config, "max_position_embeddings")
    return Estimate(
        ask=ask,
        parameters=counted,
        dtype=dtype,
        weights_said=said,
        weights_bytes=weights,
        overhead_bytes=overhead,
        kv=kv,
        kv_bytes=_kv_bytes(ask, weights, overhead),
        context_tokens=context,
        notes=notes,
    )


def _family(model: Model, notes: list[str]) -> Family:
    config = model.config
    name = str(config.get("model_type"))
    kinds = set(config.get("layer_types") or ()) - {"full_attention", "sliding_attention"}
    if kinds:
        raise UsageError(f"config.json: layers of the kind {', '.join(sorted(kinds))} are not known here.")
    if name in FAMILIES:
        return FAMILIES[name]
    if model.weights_bytes is None:
        raise UsageError(
            f"config.json: model_type {name} is not known here, only {', '.join(FAMILIES)}. Name the model's folder "
            "instead: the size of its safetensors is taken then, and the KV cache is that of a plain decoder."
        )
    notes.append(f"model_type {name} is not known here: weights as its safetensors hold them, KV as of a plain decoder")
    return Family(kind="mla" if config.get("kv_lora_rank") else "gqa")


def _dtype(config: Mapping[str, Any], asked: str, notes: list[str]) -> str:
    if asked != "auto":
        return asked
    own = _own_dtype(config)
    if own == "float32":
        notes.append("the config says float32: vLLM takes two bytes unless --dtype float32 is given")
        return "bfloat16"
    if own not in TYPE_BYTES:
        raise UsageError(f"config.json: dtype {own} is not known here, only {', '.join(TYPE_BYTES)}. Give --dtype.")
    return own


def _own_dtype(config: Mapping[str, Any]) -> str:
    return str(config.get("dtype") or config.get("torch_dtype") or "bfloat16").removeprefix("torch.")


def _check_division(shape: Layers, gpus: int) -> None:
    if shape.heads % gpus:
        raise UsageError(f"--tensor-parallel: {shape.heads} attention heads are not divided by {gpus}.")
    kv_heads = shape.kv_heads
    if shape.family.kind == "gqa" and kv_heads % gpus and gpus % kv_heads:
        raise UsageError(
            f"--tensor-parallel: {kv_heads} heads of keys and values and {gpus} GPUs: neither divides the other."
        )


def _step(ask: Ask) -> tuple[int, int]:
    gib = (ask.gpu_memory_bytes or 0) / GIB
    tokens, sequences = next((tokens, sequences) for least, tokens, sequences in STEP_DEFAULTS if gib >= least)
    return ask.step_tokens or tokens, ask.sequences_max or sequences


def _weights(
    model: Model, counted: Sequence[Part] | None, type_bytes: int, gpus: int, notes: list[str]
) -> tuple[str, int]:
    """In words where the figure is from, and of one GPU."""
    held = model.weights_bytes
    if counted is None:  # such an architecture is refused without them
        return "the size of its safetensors", -(-(held or 0) // gpus)
    if held is not None and model.config.get("quantization_config"):
        of_all = sum(part.count for part in counted)
        share = sum(_on_one(part, gpus) for part in counted) / of_all
        return "the size of its safetensors, quantized as they are", int(held * share)
    kept = stored(model.config)
    one = 0.0
    for part in counted:
        quantized = (kept.expert_bytes if part.of_experts else kept.linear_bytes) if part.linear else None
        one += (type_bytes if quantized is None else quantized) * _on_one(part, gpus)
    own = sum(part.count for part in counted) * TYPE_BYTES.get(_own_dtype(model.config), type_bytes)
    if held is not None and abs(held / own - 1) > OTHERWISE:
        notes.append(
            f"its safetensors hold {held:,} bytes, and the parameters that the config says {own:,}: more is in them"
        )
    return f"counted from the config, quantization {kept.said}", int(one)


def _on_one(part: Part, gpus: int) -> float:
    if not part.split:
        return part.count
    return part.count / min(gpus, part.kv_heads or gpus)


def _overhead(shape: Layers, type_bytes: int, gpus: int, step_tokens: int, sequences: int) -> int:
    """A rule of thumb: the widest layer's values for all tokens of a step, the logits of all sequences, CUDA's own."""
    config, experts = shape.config, shape.family.experts
    widths = [whole_or(config, "intermediate_size", 0) / gpus]
    if experts is not None and config.get(experts.count):
        chosen = whole_or(config, "num_experts_per_tok", 1)
        widths.append(chosen * (whole(config, experts.size) / gpus + shape.hidden / 3))
    values = step_tokens * (4 * shape.hidden + 3 * max(widths)) * type_bytes
    logits = 2 * 4 * sequences * shape.vocabulary
    return int(values + logits) + CONTEXT_BYTES + (COLLECTIVE_BYTES if gpus > 1 else 0)


def _kv_bytes(ask: Ask, weights: int, overhead: int) -> int:
    if ask.kv_memory_bytes is not None:
        return ask.kv_memory_bytes
    return max(0, int((ask.gpu_memory_bytes or 0) * ask.utilization) - weights - overhead)
