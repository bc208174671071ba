"""An estimate says what is known: parameters as published, blocks as vLLM makes them, and where it is a rule of thumb."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.cli import main
from bench.errors import UsageError
from bench.sizing.estimate import GIB, Ask, Estimate, estimate
from bench.sizing.families import FAMILIES
from bench.sizing.kv import KvCache, kv_cache
from bench.sizing.model import Model, read
from bench.sizing.parameters import parts
from bench.sizing.quantization import stored

_NAMES = {
    "v": "vocab_size", "h": "hidden_size", "i": "intermediate_size", "l": "num_hidden_layers", "a": "num_attention_heads",
    "k": "num_key_value_heads", "d": "head_dim", "m": "moe_intermediate_size", "w": "sliding_window",
}  # fmt: skip
_MLA = {"kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "moe_layer_freq": 1}


def config(
    model_type: str, more: dict[str, Any] | None = None, *, tied: bool | None = False, **short: int
) -> dict[str, Any]:
    said: dict[str, Any] = {"model_type": model_type, "torch_dtype": "bfloat16", "max_position_embeddings": 32768}
    if tied is not None:
        said["tie_word_embeddings"] = tied
    return {**said, **{_NAMES[name]: value for name, value in short.items()}, **(more or {})}


def _gpt_oss(layers: int, experts: int) -> dict[str, Any]:
    kinds = ["sliding_attention", "full_attention"] * (layers // 2)
    more = {"num_local_experts": experts, "num_experts_per_tok": 4, "layer_types": kinds}
    return config("gpt_oss", more, v=201088, h=2880, i=2880, l=layers, a=64, k=8, d=64, w=128)


# As their publishers count them (the tensors of the published safetensors; DeepSeek-V3 without its MTP head).
PUBLISHED: dict[str, tuple[int, dict[str, Any]]] = {
    "Llama-3.1-8B": (8_030_261_248, config("llama", v=128256, h=4096, i=14336, l=32, a=32, k=8)),
    "Llama-3.1-70B": (70_553_706_496, config("llama", v=128256, h=8192, i=28672, l=80, a=64, k=8)),
    "Llama-3.2-1B": (1_235_814_400, config("llama", tied=True, v=128256, h=2048, i=8192, l=16, a=32, k=8, d=64)),
    "Mistral-7B": (7_241_732_096, config("mistral", v=32000, h=4096, i=14336, l=32, a=32, k=8, w=4096)),
    "Mixtral-8x7B": (
        46_702_792_704,
        config("mixtral", {"num_local_experts": 8}, v=32000, h=4096, i=14336, l=32, a=32, k=8),
    ),
    "Qwen2.5-7B": (7_615_616_512, config("qwen2", v=152064, h=3584, i=18944, l=28, a=28, k=4)),
    "Qwen3-0.6B": (596_049_920, config("qwen3", tied=True, v=151936, h=1024, i=3072, l=28, a=16, k=8, d=128)),
    "Qwen3-8B": (8_190_735_360, config("qwen3", v=151936, h=4096, i=12288, l=36, a=32, k=8, d=128)),
    "Qwen3-30B-A3B": (
        30_532_122_624,
        config("qwen3_moe", {"num_experts": 128}, v=151936, h=2048, i=6144, m=768, l=48, a=32, k=4, d=128),
    ),
    "Qwen1.5-MoE-A2.7B": (
        14_315_784_192,
        config(
            "qwen2_moe", {"num_experts": 60, "shared_expert_intermediate_size": 5632},
            v=151936, h=2048, i=5632, m=1408, l=24, a=16, k=16,
        ),
    ),
    "DeepSeek-V3": (
        671_026_419_200,
        config(
            "deepseek_v3",
            {**_MLA, "n_routed_experts": 256, "n_shared_experts": 1, "first_k_dense_replace": 3, "q_lora_rank": 1536},
            v=129280, h=7168, i=18432, m=2048, l=61, a=128, k=128,
        ),
    ),
    "DeepSeek-V2-Lite": (
        15_706_484_224,
        config(
            "deepseek_v2",
            {**_MLA, "n_routed_experts": 64, "n_shared_experts": 2, "first_k_dense_replace": 1, "q_lora_rank": None},
            v=102400, h=2048, i=10944, m=1408, l=27, a=16, k=16,
        ),
    ),
    "gemma-7b": (8_537_680_896, config("gemma", tied=None, v=256000, h=3072, i=24576, l=28, a=16, k=16, d=256)),
    "gemma-2-9b": (9_241_705_984, config("gemma2", tied=None, v=256000, h=3584, i=14336, l=42, a=16, k=8, d=256, w=4096)),
    "gemma-3-1b": (999_885_952, config("gemma3_text", tied=None, v=262144, h=1152, i=6912, l=26, a=4, k=1, d=256, w=512)),
    "phi-4": (14_659_507_200, config("phi3", v=100352, h=5120, i=17920, l=40, a=40, k=10)),
    "gpt-oss-20b": (20_914_757_184, _gpt_oss(24, 32)),
    "gpt-oss-120b": (116_829_156_672, _gpt_oss(36, 128)),
}  # fmt: skip

# What vLLM 0.32's get_kv_cache_groups, get_kv_cache_config_from_groups and get_max_concurrency_for_kv_cache_config say
# of 40 GiB in BF16, with 16,384 tokens in flight and 16 a block: groups, blocks, sequences of 4,096 tokens at once.
VLLM: list[tuple[str, int, int, float]] = [
    ("Llama-3.1-8B", 1, 20480, 80.0),
    ("Mistral-7B", 1, 20480, 79.6887159533074),
    ("Qwen3-8B", 1, 18204, 71.109375),
    ("DeepSeek-V2-Lite", 1, 86302, 337.1171875),
    ("gemma-2-9b", 2, 15603, 30.415204678362574),
    ("gemma-3-1b", 7, 655360, 364.49388209121247),
    ("gpt-oss-20b", 2, 109226, 212.91617933723197),
    ("gpt-oss-120b", 2, 72817, 141.94346978557505),
]


def cache_of(name: str, *, block_tokens: int = 16, tensor_parallel: int = 1, value_bytes: int = 2) -> KvCache:
    said = PUBLISHED[name][1]
    return kv_cache(
        FAMILIES[said["model_type"]],
        said,
        value_bytes=value_bytes,
        block_tokens=block_tokens,
        tensor_parallel=tensor_parallel,
        in_flight_tokens=16384,
    )


def an_ask(**changes: Any) -> Ask:
    usual: dict[str, Any] = {
        "gpu_memory_bytes": 80 * GIB, "kv_memory_bytes": None, "utilization": 0.92, "dtype": "auto", "kv_dtype": "auto",
        "tensor_parallel": 1, "context_tokens": None, "sequences": None, "block_tokens": 16, "step_tokens": None,
        "sequences_max": None,
    }  # fmt: skip
    return Ask(**(usual | changes))


def sized(said: dict[str, Any], weights_bytes: int | None = None, **changes: Any) -> Estimate:
    return estimate(Model(said, weights_bytes), an_ask(**changes))


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_are_as_many_as_were_published(name: str) -> None:
    published, said = PUBLISHED[name]
    assert sum(part.count for part in parts(FAMILIES[said["model_type"]], said)) == published


@pytest.mark.parametrize(("name", "groups", "blocks", "sequences"), VLLM)
def test_blocks_and_sequences_are_vllms_own(name: str, groups: int, blocks: int, sequences: float) -> None:
    kv = cache_of(name)
    assert kv.full_groups + kv.sliding_groups == groups
    assert kv.blocks_in(40 * GIB) == blocks
    assert blocks / kv.blocks_of(4096) == pytest.approx(sequences, rel=1e-12)


def test_heads_are_divided_among_gpus_and_a_latent_is_not() -> None:
    whole = cache_of("Llama-3.1-8B").token_bytes
    assert [cache_of("Llama-3.1-8B", tensor_parallel=n).token_bytes / whole for n in (2, 8, 16)] == [
        1 / 2,
        1 / 8,
        1 / 8,
    ]
    assert cache_of("DeepSeek-V3", tensor_parallel=8) == cache_of("DeepSeek-V3")
    assert cache_of("DeepSeek-V3").token_bytes == 61 * 576 * 2
    assert cache_of("Llama-3.1-8B", value_bytes=1).token_bytes == whole / 2


def test_weights_are_divided_but_for_what_each_gpu_has() -> None:
    one, eight, sixteen = (sized(PUBLISHED["Llama-3.1-8B"][1], tensor_parallel=n).weights_bytes for n in (1, 8, 16))
    assert one == 8_030_261_248 * 2
    assert one / 8 < eight < one / 8 * 1.001  # norms
    keys = 2 * 4096 * 1024 * 32 * 2
    assert sixteen - eight / 2 == pytest.approx(keys / 16, rel=0.01)  # eight heads of keys: two GPUs have the same
    latent = [sized(PUBLISHED["DeepSeek-V3"][1], tensor_parallel=n).weights_bytes for n in (1, 8)]
    assert latent[1] > latent[0] / 8 * 1.005  # each GPU has the way down to the latent


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ({"quant_method": "awq", "bits": 4, "group_size": 128}, 0.5 + 2.5 / 128),
        ({"quant_method": "gptq", "bits": 8, "group_size": -1}, 1.0),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, 1 + 4 / 16384),
        ({"quant_method": "compressed-tensors", "config_groups": {"g": {"weights": {"num_bits": 8}}}}, 1.0),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"g": {"weights": {"num_bits": 4, "group_size": 32}}},
            },
            0.5 + 2.5 / 32,
        ),
    ],
)
def test_quantized_weights_take_their_bits_and_scales(said: dict[str, Any], expected: float) -> None:
    assert stored({"quantization_config": said}).linear_bytes == pytest.approx(expected)


def test_embeddings_and_head_stay_in_the_models_own_type() -> None:
    said = {**PUBLISHED["Llama-3.1-8B"][1], "quantization_config": {"quant_method": "fp8"}}
    outer = 2 * 128256 * 4096
    assert sized(said).weights_bytes == pytest.approx(outer * 2 + (8_030_261_248 - outer), rel=0.001)


def test_four_bits_are_of_the_experts_alone() -> None:
    found = sized({**PUBLISHED["gpt-oss-20b"][1], "quantization_config": {"quant_method": "mxfp4"}})
    assert found.weights_bytes == pytest.approx(13.7e9, rel=0.02)  # its published files


def test_an_unknown_quantization_and_a_missing_key_say_what_to_do() -> None:
    said = PUBLISHED["Llama-3.1-8B"][1]
    with pytest.raises(UsageError, match=r"method exl2 is not known here, only awq.*folder"):
        sized({**said, "quantization_config": {"quant_method": "exl2"}})
    assert (
        sized({**said, "quantization_config": {"quant_method": "exl2"}}, weights_bytes=5 * GIB).weights_bytes == 5 * GIB
    )
    with pytest.raises(UsageError, match="'hidden_size' is missing"):
        sized({name: value for name, value in said.items() if name != "hidden_size"})
    with pytest.raises(UsageError, match="neither divides"):
        sized(PUBLISHED["Qwen2.5-7B"][1], tensor_parallel=7)
    with pytest.raises(UsageError, match="not divided by 3"):
        sized(said, tensor_parallel=3)
    with pytest.raises(UsageError, match="linear_attention are not known"):
        sized({**said, "layer_types": ["linear_attention", "full_attention"]})


_GROUPS = {"quant_method": "compressed-tensors", "config_groups": {"g": {"weights": {"num_bits": 4, "group_size": 32}}}}
_QUANTIZED = (
    {"quant_method": "fp8", "weight_block_size": [128, 128]},
    {"quant_method": "awq", "bits": 4, "group_size": 128},
    _GROUPS,
)


@pytest.mark.parametrize("name", ["Llama-3.1-8B", "DeepSeek-V3", "gpt-oss-20b", "gemma-3-1b"])
def test_a_config_with_any_value_that_is_none_is_refused_or_sized_and_never_crashes(name: str) -> None:
    usual = PUBLISHED[name][1]
    for key in usual:
        for value in (None, "x", "", [], [[]], {}, {"a": 1}, 0, -1, 0.5, True, 10**30, float("nan")):
            _refused_or_sized({**usual, key: value})


@pytest.mark.parametrize("usual", _QUANTIZED)
def test_any_quantization_that_is_none_is_refused_or_sized_and_never_crashes(usual: dict[str, Any]) -> None:
    said = PUBLISHED["Llama-3.1-8B"][1]
    for value in ("x", [1], 5, True, {"config_groups": [1]}, {"config_groups": {"g": 5}}):
        _refused_or_sized({**said, "quantization_config": value})
    for key in usual:
        for value in (None, "x", [], [0, 0], [1], {"g": {"weights": 5}}, {"g": {"weights": {"num_bits": "x"}}}, 0, -1):
            _refused_or_sized({**said, "quantization_config": {**usual, key: value}})


def _refused_or_sized(said: dict[str, Any]) -> None:
    try:
        found = sized(said)
    except UsageError:
        return
    assert min(found.weights_bytes, found.overhead_bytes, found.kv.block_bytes, found.needed_bytes) > 0, said


def test_a_text_model_that_is_none_is_no_config(tmp_path: Path) -> None:
    for value in (None, [], "x"):
        file = a_folder(tmp_path, {"model_type": "gemma3", "text_config": value}) / "config.json"
        with pytest.raises(UsageError):
            estimate(read(file), an_ask())


def test_an_unknown_architecture_is_sized_by_its_safetensors_or_refused() -> None:
    said = {**PUBLISHED["Llama-3.1-8B"][1], "model_type": "newest"}
    with pytest.raises(UsageError, match=r"model_type newest is not known here, only llama.*folder"):
        sized(said)
    found = sized(said, weights_bytes=16 * GIB, tensor_parallel=2)
    assert (found.weights_bytes, found.parameters) == (8 * GIB, None)
    assert "newest is not known here" in found.notes[0]


def test_more_in_the_files_than_the_config_says_is_said() -> None:
    said, counted = PUBLISHED["Llama-3.1-8B"][1], 8_030_261_248 * 2
    assert sized(said, weights_bytes=counted, dtype="float32").notes == []
    assert "more is in them" in sized(said, weights_bytes=int(counted * 1.1)).notes[0]


sequences_and_memory = st.tuples(st.sampled_from(sorted(PUBLISHED)), st.integers(1, 200), st.integers(1, 200_000))


@given(sequences_and_memory, st.integers(1, 200))
def test_what_is_said_to_fit_fits_and_one_token_more_does_not(drawn: tuple[str, int, int], gib: int) -> None:
    name, sequences, tokens = drawn
    kv = cache_of(name)
    blocks = kv.blocks_in(gib * GIB) - 1
    assert kv.sequences_in(gib * GIB, tokens) * kv.blocks_of(tokens) <= max(0, blocks)
    assert (kv.sequences_in(gib * GIB, tokens) + 1) * kv.blocks_of(tokens) > blocks
    longest = kv.longest_in(gib * GIB, sequences)
    if longest is None:
        assert not kv.full_groups
    else:
        assert longest == 0 or sequences * kv.blocks_of(longest) <= blocks
        assert sequences * kv.blocks_of(longest + 1) > blocks


def test_more_memory_never_fits_less() -> None:
    found = [
        sized(PUBLISHED["Llama-3.1-8B"][1], gpu_memory_bytes=gib * GIB, step_tokens=2048) for gib in range(16, 200, 8)
    ]
    assert [each.sequences for each in found] == sorted(each.sequences for each in found)
    assert found[0].sequences == 0 and not found[0].fits


def a_folder(path: Path, said: dict[str, Any], *, tensors: int | None = None, index: int | None = None) -> Path:
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps(said))
    if tensors is not None:
        header = json.dumps(
            {"__metadata__": {}, "w": {"dtype": "BF16", "shape": [1], "data_offsets": [0, tensors]}}
        ).encode()
        (path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    if index is not None:
        (path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {"total_size": index}}))
    return path


def test_a_folder_says_how_large_its_tensors_are(tmp_path: Path) -> None:
    said = PUBLISHED["Llama-3.1-8B"][1]
    assert read(a_folder(tmp_path / "a", said, tensors=1234)).weights_bytes == 1234
    assert read(a_folder(tmp_path / "b", said, tensors=1234, index=5678)).weights_bytes == 5678
    assert read(a_folder(tmp_path / "c", said)).weights_bytes is None
    (tmp_path / "a" / "model.safetensors").write_bytes(b"no safetensors at all")
    with pytest.raises(UsageError, match="no safetensors"):
        read(tmp_path / "a")


def test_of_a_model_that_also_sees_the_text_model_is_sized(tmp_path: Path) -> None:
    said = {"model_type": "gemma3", "text_config": PUBLISHED["gemma-3-1b"][1], "vision_config": {}}
    found = read(a_folder(tmp_path / "m", said) / "config.json")
    assert found.config["model_type"] == "gemma3_text" and "the text model of gemma3" in found.about


def test_the_command_says_whether_it_fits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = a_folder(tmp_path / "Llama-3.1-8B", PUBLISHED["Llama-3.1-8B"][1])
    words = ["size", "--model-config", str(folder), "--gpu-memory", "80GiB", "--context", "16384", "--concurrency"]
    assert main([*words, "27"]) == 0
    said = capsys.readouterr().out
    assert "An estimate before a measured run" in said and "8,030,261,248 parameters" in said
    assert "27 sequences of 16,384 tokens fit at once" in said
    assert main([*words, "28"]) == 1
    assert "it does not fit" in capsys.readouterr().out
    assert main([*words, "27", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["fits"] and found["kv_bytes_per_token"] == 131072 and found["sequences_that_fit"] == 27


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["--gpu-memory", "80GiB", "--kv-cache-memory", "2GiB"],
        ["--gpu-memory", "80"],
        ["--gpu-memory", "0GiB"],
        ["--gpu-memory", "80GiB", "--gpu-memory-utilization", "1.5"],
        ["--gpu-memory", "80GiB", "--context", "0"],
    ],
)
def test_what_makes_no_sense_is_a_usage_error(words: list[str], tmp_path: Path) -> None:
    folder = a_folder(tmp_path / "m", PUBLISHED["Llama-3.1-8B"][1])
    assert main(["size", "--model-config", str(folder), *words]) == 2
