"""What `gateway bench size` says of the tiny model is what a real vLLM has and prints."""

from __future__ import annotations

import json
import urllib.request

import pytest

from bench.cli import main
from bench.engine.metrics import parse
from deploy.engine.launch import KV_GIB

pytestmark = pytest.mark.engine


def test_the_estimate_is_the_cache_that_the_engine_has_and_prints(engine, capsys):
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"{engine.base_url}/metrics", timeout=60) as reply:
        said = parse(reply.read().decode()).cache_config
    words = ["size", "--model-config", str(engine.tokenizer_path), "--kv-cache-memory", f"{KV_GIB}GiB", "--json"]
    flags = ["--dtype", engine.effective["dtype"], "--block-size", said["block_size"]]
    assert main([*words, *flags, "--context", str(engine.effective["max_model_len"])]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["blocks"] == int(said["num_gpu_blocks"])
    printed = f"KV cache size: {found['kv_cache_size_tokens']:,} tokens"
    assert printed in engine.log.read_text()
    assert f"{found['max_concurrency']:.2f}x" in engine.log.read_text()
