"""`gateway bench size`: whether a model and its load fit into a GPU's memory, before anything is started."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Sequence
from pathlib import Path

from bench.argument_types import share, whole
from bench.errors import UsageError
from bench.exits import Exit
from bench.report.sizing_table import describe, to_json
from bench.sizing.estimate import KV_BYTES, TYPE_BYTES, Ask, estimate
from bench.sizing.model import read

HELP = "estimate weights, KV cache and margin of a model on a GPU"
EXAMPLE = """examples:
  gateway bench size --model-config ./Llama-3.1-8B --gpu-memory 80GiB --context 16384 --concurrency 32
  gateway bench size --model-config config.json --gpu-memory 141GB --tensor-parallel 4 --kv-cache-dtype fp8
  gateway bench size --model-config ./tiny --kv-cache-memory 2GiB --dtype float32 --block-size 128      # a CPU engine

An estimate before a measured run, from a Hugging Face config.json alone, or a model's folder. On a CPU vLLM takes what
VLLM_CPU_KVCACHE_SPACE says: --kv-cache-memory, which is also vLLM's --kv-cache-memory-bytes.

exit codes: 0 it fits, 1 it does not, 2 usage"""
_UNITS = {"GIB": 2**30, "MIB": 2**20, "GB": 10**9, "MB": 10**6}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([GM]I?B)", re.IGNORECASE)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model-config", type=Path, required=True, metavar="FILE_OR_FOLDER", help="config.json")
    memory = parser.add_argument_group("memory")
    memory.add_argument("--gpu-memory", type=_bytes, metavar="SIZE", help="of one GPU: 80GiB, 141GB")
    memory.add_argument("--gpu-memory-utilization", type=share, default=0.92, metavar="SHARE", help="(default 0.92)")
    memory.add_argument("--kv-cache-memory", type=_bytes, metavar="SIZE", help="stated instead of what is left")
    memory.add_argument("--tensor-parallel", type=whole, default=1, metavar="N", help="GPUs (default 1)")
    load = parser.add_argument_group("intended load")
    load.add_argument("--context", type=whole, metavar="N", help="tokens of a sequence (default: the model's)")
    load.add_argument("--concurrency", type=whole, metavar="N", help="sequences at once")
    flags = parser.add_argument_group("vLLM's own flags")
    flags.add_argument("--dtype", choices=["auto", *TYPE_BYTES], default="auto")
    flags.add_argument("--kv-cache-dtype", choices=["auto", *KV_BYTES], default="auto")
    flags.add_argument("--block-size", type=whole, default=16, metavar="N", help="(default 16)")
    flags.add_argument("--max-num-batched-tokens", type=whole, metavar="N", help="(default: by the memory)")
    flags.add_argument("--max-num-seqs", type=whole, metavar="N", help="(default: by the memory)")
    parser.add_argument("--json", action="store_true", help="print JSON instead")


def execute(args: argparse.Namespace, _command: Sequence[str]) -> int:
    """Raises UsageError."""
    if (args.gpu_memory is None) == (args.kv_cache_memory is None):
        raise UsageError("Give either --gpu-memory, or --kv-cache-memory.")
    found = estimate(
        read(args.model_config),
        Ask(
            gpu_memory_bytes=args.gpu_memory,
            kv_memory_bytes=args.kv_cache_memory,
            utilization=args.gpu_memory_utilization,
            dtype=args.dtype,
            kv_dtype=args.kv_cache_dtype,
            tensor_parallel=args.tensor_parallel,
            context_tokens=args.context,
            sequences=args.concurrency,
            block_tokens=args.block_size,
            step_tokens=args.max_num_batched_tokens,
            sequences_max=args.max_num_seqs,
        ),
    )
    if args.json:
        print(json.dumps(to_json(found), indent=2))
    else:
        path = args.model_config.absolute()
        print(describe(path.name if path.is_dir() else path.parent.name, found), end="")
    return Exit.VALID if found.fits else Exit.FAILURE


def _bytes(text: str) -> int:
    """An argparse type: a size with its unit."""
    found = _SIZE.fullmatch(text.strip())
    size = int(float(found[1]) * _UNITS[found[2].upper()]) if found else 0
    if not size:
        raise argparse.ArgumentTypeError("must be a size with its unit: 80GiB, 141GB")
    return size
