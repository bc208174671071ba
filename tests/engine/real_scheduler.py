"""vLLM's own Scheduler class, fed and stepped by hand: a model runner that computes nothing stands behind it.

Imported in the engine's environment alone. Owns how the class is built and how its outputs are fed back, in the order
of vLLM's engine core: with two batches in flight the next step is scheduled before the last one's output is known.
"""

from __future__ import annotations

import json
import tempfile
from collections import deque
from pathlib import Path

import torch
from vllm.config import CacheConfig, DeviceConfig, ModelConfig, SchedulerConfig, VllmConfig
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

from bench.simulation.steps import EngineFlags, EngineRequest, Step, StepTime

CONTEXT_TOKENS = 16_384
A_TOKEN = 7
OWN_TOKENS_FROM = 1_000_000
MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "num_hidden_layers": 1,
    "vocab_size": 256,
    "max_position_embeddings": CONTEXT_TOKENS,
    "rms_norm_eps": 1e-5,
    "dtype": "float32",
}


class RealScheduler:
    """One instance of vLLM's Scheduler, with the face of bench.simulation's VirtualEngine."""

    configuration: VllmConfig

    def __init__(self, flags: EngineFlags, step_time: StepTime | None = None, *, adaptive: bool = False) -> None:
        asynchronous = flags.batches_in_flight > 1
        self.configuration.scheduler_config = SchedulerConfig(
            max_model_len=CONTEXT_TOKENS,
            is_encoder_decoder=False,
            max_num_seqs=flags.max_num_seqs,
            max_num_active_seqs=flags.max_num_active_seqs,
            watermark=flags.watermark,
            max_num_batched_tokens=flags.max_num_batched_tokens,
            long_prefill_token_threshold=flags.long_prefill_token_threshold,
            long_prefill_token_threshold_adaptive=adaptive,
            policy="priority" if flags.priority_scheduling else "fcfs",
            async_scheduling=asynchronous,
        )
        self.configuration.cache_config.num_gpu_blocks = flags.kv_blocks
        self.configuration.cache_config.enable_prefix_caching = flags.prefix_caching
        self._hasher = get_request_block_hasher(flags.block_tokens, sha256) if flags.prefix_caching else None
        attention = FullAttentionSpec(block_size=flags.block_tokens, num_kv_heads=1, head_size=1, dtype=torch.float32)
        self._scheduler = (AsyncScheduler if asynchronous else Scheduler)(
            vllm_config=self.configuration,
            kv_cache_config=KVCacheConfig(
                num_blocks=flags.kv_blocks,
                kv_cache_tensors=[],
                kv_cache_groups=[KVCacheGroupSpec(["layer"], attention)],
            ),
            structured_output_manager=StructuredOutputManager(self.configuration),
            block_size=flags.block_tokens,
        )
        self._step_time = step_time or StepTime()
        self._requests: dict[int, EngineRequest] = {}
        self._outputs: deque[tuple[SchedulerOutput, ModelRunnerOutput]] = deque()
        self._arrivals = 0

    @classmethod
    def prepare(cls) -> None:
        """Make the configuration that all instances share; nothing of a model but its shape is needed."""
        init_none_hash(sha256)
        folder = Path(tempfile.mkdtemp())
        (folder / "config.json").write_text(json.dumps(MODEL))
        cls.configuration = VllmConfig(
            model_config=ModelConfig(
                model=str(folder),
                skip_tokenizer_init=True,
                dtype="float32",
                max_model_len=CONTEXT_TOKENS,
                enforce_eager=True,
            ),
            scheduler_config=SchedulerConfig(
                max_model_len=CONTEXT_TOKENS, is_encoder_decoder=False, max_num_seqs=8, max_num_batched_tokens=2048
            ),
            cache_config=CacheConfig(block_size=EngineFlags().block_tokens, enable_prefix_caching=False),
            device_config=DeviceConfig("cpu"),
        )

    @property
    def busy(self) -> bool:
        return self._scheduler.has_requests()

    def add(self, request: EngineRequest) -> None:
        self._arrivals += 1
        self._requests[request.id] = request
        self._scheduler.add_request(
            Request(
                str(request.id),
                _prompt(request),
                SamplingParams(max_tokens=request.output_tokens, ignore_eos=True),
                None,
                priority=request.priority,
                arrival_time=float(self._arrivals),
                block_hasher=self._hasher,
            )
        )

    def abort(self, request_id: int) -> None:
        if self._requests.pop(request_id, None) is not None:
            self._scheduler.finish_requests(str(request_id), RequestStatus.FINISHED_ABORTED)

    def schedule(self) -> Step:
        output = self._scheduler.schedule()
        tokens = {int(name): count for name, count in output.num_scheduled_tokens.items()}
        sampling = [name for name in output.num_scheduled_tokens if not self._scheduler.requests[name].is_prefill_chunk]
        context = chunks = 0
        for request_id, count in tokens.items():
            request = self._requests[request_id]
            request.computed = self._scheduler.requests[str(request_id)].num_computed_tokens - count
            context += count * request.computed
            chunks += count * count
            request.computed += count
        for name in sampling:
            self._requests[int(name)].sampled += 1
        if tokens:
            self._outputs.append((output, _sampled(list(output.num_scheduled_tokens), set(sampling))))
        sampled = [self._requests[int(name)] for name in sampling]
        return Step(
            tokens,
            self._step_time.step_s(sum(tokens.values()), len(tokens), context, chunks) if tokens else 0.0,
            first_tokens=[request.id for request in sampled if request.sampled == 1],
            ended=[request.id for request in sampled if request.complete],
        )

    def steps_alike(self) -> int:
        """vLLM takes one step after the other."""
        return 0

    def ends_alike(self, begins_at: float, steps: int) -> list[float]:
        raise AssertionError(f"no steps are alike: {begins_at}, {steps}")

    def run_alike(self, scheduled: int, ended: int) -> list[Step]:
        raise AssertionError(f"no steps are alike: {scheduled}, {ended}")

    def look_at(self, request: EngineRequest) -> None:
        """Bring up to date what a request says of itself; here it always is."""

    def end(self, step: Step) -> None:
        """Feed the oldest step's output back; `step` must be that step."""
        output, sampled = self._outputs.popleft()
        assert len(sampled.req_ids) == len(step.tokens)
        self._scheduler.update_from_output(output, sampled)
        for request_id in step.ended:
            self._requests.pop(request_id, None)


def _prompt(request: EngineRequest) -> list[int]:
    """Return token ids that are the same in two requests where the model's blocks are."""
    prefix = [OWN_TOKENS_FROM - 1 - request.prefix] * request.prefix_tokens
    return prefix + [OWN_TOKENS_FROM + request.id] * (request.prompt_tokens - request.prefix_tokens)


def _sampled(names: list[str], sampling: set[str]) -> ModelRunnerOutput:
    return ModelRunnerOutput(
        req_ids=names,
        req_id_to_index={name: index for index, name in enumerate(names)},
        sampled_token_ids=[[A_TOKEN] if name in sampling else [] for name in names],
    )
