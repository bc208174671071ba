"""What to do about a constraint, as data: what relieves it, the command that tries that, what would not help. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from bench.diagnosis.rules import Constraint


@dataclass(frozen=True, slots=True)
class Advice:
    """What a constraint is called, what would relieve it, the command that tries it, and what would not help."""

    title: str
    relief: str
    command: str
    no_help: str


ADVICE: dict[Constraint, Advice] = {
    Constraint.SEQUENCE_LIMIT: Advice(
        "the engine's sequence limit (max_num_seqs)",
        "raise max_num_seqs, and the policy's slots.total with it; each answer then gets slower, so hold the stalls "
        "and the end-to-end times against their limits",
        "gateway bench sweep sweep.yaml, with max_num_seqs at {limit} and at twice and four times that",
        "a larger prefill budget, another order of the queue, more KV cache",
    ),
    Constraint.KV_CACHE: Advice(
        "the KV cache",
        "give it more memory (gpu_memory_utilization, an FP8 KV cache, a smaller model, more GPUs), or keep more of it "
        "reserved: fewer sequences, kv reserves in the policy, shorter outputs or contexts",
        "gateway bench size --model-config FOLDER --gpu-memory MEMORY, then gateway bench sweep sweep.yaml with "
        "max_num_seqs at {running} and at half of that",
        "a higher sequence limit or a looser admission, which make it worse; a larger prefill budget",
    ),
    Constraint.PREFILL_BUDGET: Advice(
        "the step's prefill budget, which long prompts take",
        "leave short prompts tokens of every step: --long-prefill-token-threshold with the policy short-first, or the "
        "policy sliced where the engine has no such flag; a larger max_num_batched_tokens only where a step's fixed "
        "cost is large, since it lengthens the stalls of what decodes",
        "gateway bench policies passthrough short-first sliced --engine-url {engine_url} --model {model} "
        "--tokenizer {tokenizer} …, then gateway bench sweep sweep.yaml with long_prefill_token_threshold and "
        "max_num_batched_tokens",
        "a higher sequence limit, more KV cache, a larger queue",
    ),
    Constraint.ADMISSION_TIGHT: Advice(
        "admission: the gateway holds requests that the engine has room for",
        "raise the policy's slots.total (or long_prefills_max and short_prefill_tokens_max, or a tenant's "
        "running_max), for as long as tokens per second still grow with it",
        "gateway bench policies {policy} ./looser.yaml --engine-url {engine_url} --model {model} --tokenizer "
        "{tokenizer} …",
        "any setting of the engine, which is not full; longer queues, which only lengthen the wait",
    ),
    Constraint.ADMISSION_OPEN: Advice(
        "admission is too open: requests wait in the engine, where nobody orders them",
        "let fewer in at a time (slots.total, long_prefills_max, short_prefill_tokens_max): what waits then waits "
        "where classes and deadlines count",
        "gateway bench policies {policy} short-first --engine-url {engine_url} --model {model} --tokenizer "
        "{tokenizer} …",
        "a higher sequence limit, a larger prefill budget",
    ),
    Constraint.API_SERVER: Advice(
        "the way to the engine's queue: its API server's CPU (HTTP, tokenizing, templates), the gateway's own, or the "
        "network",
        "give that process cores of its own; --api-server-count where the engine has it; tokenize elsewhere; look at "
        "CPU use of gateway and API server during a run",
        "gateway bench run straight to {engine_url} with the same --trace: what the way takes without the gateway",
        "max_num_seqs, max_num_batched_tokens, KV cache and admission: the requests have not reached them",
    ),
    Constraint.CLIENT: Advice(
        "the client: it sends too late, and that is in every latency",
        "give the client cores of its own, or another machine; nice -n -5; a lower --lag-tolerance-ms, so that such a "
        "run is INVALID",
        "the same command from a machine that does nothing else",
        "anything at the gateway or at the engine",
    ),
    Constraint.DEVICE_IDLE: Advice(
        "the host: the GPU is idle while requests wait",
        "look at the engine's CPU (scheduling, detokenizing, data between processes), at the network and at what holds "
        "requests before the engine; async scheduling",
        "gateway bench run straight to {engine_url} with the same --trace, with the engine's cores to itself",
        "a faster or a second GPU, more KV cache",
    ),
    Constraint.ENGINE_SPEED: Advice(
        "the engine's speed: more is offered than it computes, and no limit is seen to be reached",
        "offer less (a lower rate, bounded queues with refusals), shorter prompts or outputs, prefix caching, a "
        "faster or a second engine",
        "gateway bench ladder --base-url {base_url} --model {model} --tokenizer {tokenizer} …: the rate that "
        "it carries",
        "a higher sequence limit, more KV cache, a longer queue; an order only chooses who waits",
    ),
}
