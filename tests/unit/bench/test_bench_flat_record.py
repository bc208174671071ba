"""`vllm_bench.json`: vLLM's names where the meaning is the same, and none for what was not measured."""

from bench_kit import a_record, ended, measured_of

from bench.records.request import Outcome
from bench.records.vllm_flat import flat


def test_the_flat_record_has_the_names_of_vllm_bench_serve_and_no_inter_token_latency() -> None:
    records = [a_record(), ended(Outcome.REFUSED)]
    run = {
        "run_id": "20260101T000000Z-ab",
        "cell_id": "run",
        "endpoint": "chat",
        "trace_origin": {"rate_per_s": 2.0},
        "metadata": {"k": "v"},
    }
    said = flat(records, measured_of(records), model="m", tokenizer="t", run=run)
    assert (said["completed"], said["failed"], said["num_prompts"], said["request_rate"]) == (1, 1, 2, 2.0)
    assert said["mean_ttft_ms"] == said["p99_ttft_ms"] == 200.0
    assert (said["total_input_tokens"], said["backend"], said["k"]) == (512, "openai-chat", "v")
    assert not [name for name in said if "itl" in name]


def test_the_flat_record_has_no_key_for_what_was_not_measured() -> None:
    records = [ended(Outcome.REFUSED)]
    run = {"run_id": "x", "cell_id": "run", "endpoint": "chat", "trace_origin": {}, "metadata": {}}
    said = flat(records, measured_of(records), model="m", tokenizer="t", run=run)
    assert not [name for name in said if name.endswith("_ms") or name in ("request_goodput", "duration")]


def test_what_somebody_says_of_a_run_replaces_nothing_that_was_measured() -> None:
    metadata = {"completed": "1000", "mean_ttft_ms": "1", "duration": "1", "date": "yesterday", "gpu": "none"}
    run = {"run_id": "x", "cell_id": "run", "endpoint": "chat", "trace_origin": {}, "metadata": metadata}
    said = flat([a_record()], measured_of([a_record()]), model="m", tokenizer="t", run=run)
    assert (said["completed"], said["mean_ttft_ms"], said["duration"], said["date"]) == (1, 200.0, 1.0, "x")
    assert said["gpu"] == "none"


def test_tokens_a_second_are_absent_where_an_answer_came_without_its_count() -> None:
    records = [a_record(), a_record(output_tokens=None)]
    run = {"run_id": "x", "cell_id": "run", "endpoint": "chat", "trace_origin": {}, "metadata": {}}
    said = flat(records, measured_of(records), model="m", tokenizer="t", run=run)
    assert said["request_throughput"] == 2.0
    assert not {"output_throughput", "total_token_throughput", "total_output_tokens"} & set(said)
