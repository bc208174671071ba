"""What a user types: parsed strictly, refused with the place and without repeating a secret."""

from pathlib import Path

import pytest

from bench import options, order, plans, scenario
from bench.analysis.comparison import Load
from bench.cli import main
from bench.errors import UsageError
from bench.load.target import clean_url, metrics_url, resolve_keys

LENGTHS = {"short": (512, 128), "long": (8192, 128)}


def test_a_mix_is_shares_by_count() -> None:
    short, long = options.parse_mix("80/20", lengths=LENGTHS, where="--mix")
    assert (short.name, short.share, short.prompt_tokens) == ("short", 80, 512)
    assert (long.name, long.share, long.prompt_tokens) == ("long", 20, 8192)


def test_a_class_with_no_share_does_not_occur() -> None:
    assert [load.name for load in options.parse_mix("100/0", lengths=LENGTHS, where="--mix")] == ["short"]


@pytest.mark.parametrize("text", ["80", "80/20/0", "0/0", "-1/2", "80/x", "", "0.8/0.2"])
def test_a_mix_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--mix"):
        options.parse_mix(text, lengths=LENGTHS, where="--mix")


def test_credentials_are_names_of_variables_for_one_class_or_all() -> None:
    assert options.parse_credentials(["short=KEY_A", "long=KEY_B"], "--credential") == {
        "short": "KEY_A",
        "long": "KEY_B",
    }
    assert options.parse_credentials(["KEY"], "--credential") == {"*": "KEY"}


def test_a_key_given_in_place_of_a_name_is_refused_and_not_repeated() -> None:
    with pytest.raises(UsageError) as refused:
        options.parse_credentials(["short=gw-topsecret-0123"], "--credential")
    assert "topsecret" not in str(refused.value)


def test_a_variable_that_is_not_set_is_named() -> None:
    with pytest.raises(UsageError, match=r"KEY_A \(credential of class short\)"):
        resolve_keys({"short": "KEY_A"}, {})
    assert resolve_keys({"short": "KEY_A"}, {"KEY_A": "gw-1"}) == {"short": "gw-1"}


@pytest.mark.parametrize("key", ["", "  ", "a\nb", "schlüssel"])
def test_a_key_that_cannot_stand_in_a_header_is_refused(key: str) -> None:
    with pytest.raises(UsageError):
        resolve_keys({"short": "KEY_A"}, {"KEY_A": key})


def test_priorities_are_integers_of_64_bits() -> None:
    assert options.parse_priorities(["short=-5", "long=10"], "--priority") == {"short": -5, "long": 10}
    for word in ("short=1.5", "short=", "short", f"short={2**63}"):
        with pytest.raises(UsageError, match="--priority"):
            options.parse_priorities([word], "--priority")


def test_one_key_twice_is_refused() -> None:
    with pytest.raises(UsageError, match="twice"):
        options.parse_pairs(["a=1", "a=2"], "--metadata")


@pytest.mark.parametrize(
    ("given", "cleaned"),
    [("http://h:8000", "http://h:8000"), ("http://h:8000/", "http://h:8000"), ("https://h/x/v1/", "https://h/x")],
)
def test_a_base_url_may_end_as_people_write_it(given: str, cleaned: str) -> None:
    assert clean_url(given, "--base-url") == cleaned


@pytest.mark.parametrize(
    "url", ["h:8000", "ftp://h", "http://", "http://user:pw@h", "http://h?key=1", "http://h:99999", "http://[h"]
)
def test_an_url_that_is_none_or_carries_a_secret_is_refused(url: str) -> None:
    with pytest.raises(UsageError, match="--base-url"):
        clean_url(url, "--base-url")


def test_the_engine_url_may_name_the_engine_or_its_metrics() -> None:
    assert metrics_url("http://h:8000", "") == metrics_url("http://h:8000/metrics", "") == "http://h:8000/metrics"


SCENARIO = """
version: 1
name: first
model: tiny
tokenizer: ./tok
arms:
  - {name: fcfs, base_url: "http://h:1"}
  - {name: gw, base_url: "http://h:2", priority: {short: 0, long: 10}}
capacity_per_s: 2.0
loads: [0.5, 1.0]
num_prompts: 10
seeds: [1, 2]
"""


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "s.yaml"
    path.write_text(text)
    return path


def test_a_scenario_is_read_with_its_defaults(tmp_path: Path) -> None:
    read = scenario.load(written(tmp_path, SCENARIO))
    assert read.tokenizer == tmp_path / "tok"
    assert read.offered() == [Load("load 0.5", 1.0, "80/20"), Load("load 1", 2.0, "80/20")]
    assert (read.lengths.short.prompt_tokens, read.lengths.long.prompt_tokens, read.mixes) == (512, 8192, ["80/20"])


def test_a_load_is_a_share_of_what_the_engine_carries_of_that_mix(tmp_path: Path) -> None:
    text = SCENARIO.replace("capacity_per_s: 2.0", 'capacity_per_s: {"80/20": 2.0, "50/50": 0.5}')
    read = scenario.load(written(tmp_path, text + 'mixes: ["80/20", "50/50"]\n'))
    assert [(load.mix, load.rate_per_s) for load in read.offered()] == [
        ("80/20", 1.0),
        ("50/50", 0.25),
        ("80/20", 2.0),
        ("50/50", 0.5),
    ]
    assert options.parse_capacity(["80/20=2.0", "50/50=0.5"], "--capacity") == read.capacity_per_s
    assert options.parse_capacity(["2"], "--capacity") == 2.0
    assert options.parse_capacity([], "--capacity") is None
    with pytest.raises(UsageError, match="--capacity"):
        options.parse_capacity(["80/20=much"], "--capacity")


def test_a_run_lasts_longer_where_its_rate_brings_too_few_requests(tmp_path: Path) -> None:
    text = SCENARIO.replace("num_prompts: 10", "duration_s: 10\nwarmup_s: 2\nnum_prompts_min: 16")
    read = scenario.load(written(tmp_path, text))
    traces = [plans.trace_of(read, order.Block(load, 1, 1)) for load in read.offered()]
    assert [(len(trace.arrivals), trace.span_s) for trace in traces] == [(16, 16.0), (24, 12.0)]


AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:00:00.0000000,100,5
2023-11-16 18:00:02.0000000,4000,6
2023-11-16 18:00:10.0000000,640,7
"""


def test_a_trace_of_any_format_is_replayed_at_each_rate(tmp_path: Path) -> None:
    (tmp_path / "azure.csv").write_text(AZURE)
    text = SCENARIO.replace("num_prompts: 10", "trace: azure.csv\ntrace_classes: [chat:1000, document]")
    read = scenario.load(written(tmp_path, text))
    assert [(load.mix, load.rate_per_s) for load in read.offered()] == [("azure.csv", 1.0), ("azure.csv", 2.0)]
    assert plans.classes_of(read) == ["chat", "document"]
    slow, fast = (plans.trace_of(read, order.Block(load, 1, 1)) for load in read.offered())
    assert [each.at_s for each in slow.arrivals] == pytest.approx([0.0, 0.6, 3.0])
    assert [each.at_s for each in fast.arrivals] == pytest.approx([0.0, 0.3, 1.5])
    assert [(each.class_name, each.prompt_tokens, each.output_tokens) for each in fast.arrivals] == [
        ("chat", 100, 5),
        ("document", 4000, 6),
        ("chat", 640, 7),
    ]
    assert fast.origin["source"] == "azure.csv" and fast.origin["time_scale"] == pytest.approx(0.15)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("num_prompts: 10", "num_prompts: 10\ntrace: day.jsonl", "trace says what is sent"),
        ("num_prompts: 10", "num_prompts: 10\nnum_prompts_min: 5", "num_prompts_min lengthens duration_s"),
        ("capacity_per_s: 2.0", 'capacity_per_s: {"50/50": 2.0}', "capacity_per_s names other mixes"),
        ("model: tiny", "model: tiny\nmodell: x", "modell: unknown key"),
        ("model: tiny", "model: tiny\nmodel: x", "line 5: key 'model' twice"),
        ("version: 1", "version: 2", "version: "),
        ("version: 1\n", "", r"version: is missing\. Add it\."),
        ("num_prompts: 10", "num_prompts: 10\nduration_s: 5", "give either duration_s or num_prompts"),
        ("num_prompts: 10", "", "give either duration_s or num_prompts"),
        ("loads: [0.5, 1.0]", "", "loads are shares of capacity_per_s|either rates_per_s"),
        ("capacity_per_s: 2.0", "rates_per_s: [1]", "either rates_per_s"),
        ("name: gw", "name: fcfs", "two arms have one name"),
        ("num_prompts: 10", "num_prompts: ten", "num_prompts: "),
        ("seeds: [1, 2]", "seeds: []", "seeds: "),
        ("seeds: [1, 2]", "mixes: [80-20]", "mixes.0: "),
        ("version: 1", "? [a]\n: 1", "a key must be a word"),
        ("version: 1", "version: [", "line "),
    ],
)
def test_a_scenario_that_is_wrong_is_refused_with_file_and_key(tmp_path: Path, old: str, new: str, said: str) -> None:
    with pytest.raises(UsageError, match=said) as refused:
        scenario.load(written(tmp_path, SCENARIO.replace(old, new)))
    assert str(refused.value).startswith(str(tmp_path / "s.yaml"))


def test_a_scenario_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"gone\.yaml: cannot be read"):
        scenario.load(tmp_path / "gone.yaml")


def test_every_arm_runs_every_trace_and_arms_of_a_trace_stay_together(tmp_path: Path) -> None:
    read = scenario.load(written(tmp_path, SCENARIO + "repeats: 2\n"))
    cells = order.cells(read)
    assert len({cell.cell_id for cell in cells}) == len(cells) == 2 * 2 * 2 * 2
    for first, second in zip(cells[::2], cells[1::2], strict=True):
        assert first.block == second.block
        assert {first.arm.name, second.arm.name} == {"fcfs", "gw"}


def test_the_order_is_drawn_from_its_seed(tmp_path: Path) -> None:
    orders = [
        [cell.cell_id for cell in order.cells(scenario.load(written(tmp_path, f"{SCENARIO}order_seed: {seed}\n")))]
        for seed in (1, 1, 2)
    ]
    assert orders[0] == orders[1] != orders[2]
    assert sorted(orders[0]) == sorted(orders[2])


def test_arms_do_not_always_run_in_the_same_order(tmp_path: Path) -> None:
    cells = order.cells(scenario.load(written(tmp_path, SCENARIO + "repeats: 8\n")))
    assert {cell.arm.name for cell in cells[::2]} == {"fcfs", "gw"}


def test_all_arms_of_a_block_get_the_same_trace(tmp_path: Path) -> None:
    read = scenario.load(written(tmp_path, SCENARIO))
    cells = order.cells(read)
    assert plans.trace_of(read, cells[0].block) == plans.trace_of(read, cells[1].block)


def test_one_seed_sends_the_same_prompts_at_every_rate(tmp_path: Path) -> None:
    read = scenario.load(written(tmp_path, SCENARIO))
    slow, fast = (plans.trace_of(read, order.Block(load, 1, 1)) for load in read.offered())
    sent = [
        [(each.class_name, each.prompt_tokens, each.output_tokens) for each in one.arrivals] for one in (slow, fast)
    ]
    assert sent[0] == sent[1]
    assert [each.at_s for each in slow.arrivals] == pytest.approx([2 * each.at_s for each in fast.arrivals], abs=1e-5)


RUN = ["run", "--base-url", "http://127.0.0.1:9", "--model", "m", "--tokenizer", "/nowhere"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run"], "required: --base-url"),
        (["fly"], "invalid choice"),
        (RUN, "--request-rate is missing"),
        ([*RUN, "--request-rate", "1"], "either --duration or --num-prompts"),
        ([*RUN, "--request-rate", "1", "--duration", "1", "--num-prompts", "2"], "either --duration or --num-prompts"),
        ([*RUN, "--request-rate", "0", "--duration", "1"], "--request-rate: must be above 0"),
        ([*RUN, "--request-rate", "nan", "--duration", "1"], "--request-rate: must be above 0"),
        ([*RUN, "--request-rate", "1", "--num-prompts", "0"], "--num-prompts: must be at least 1"),
        ([*RUN, "--request-rate", "1", "--num-prompts", "9", "--warmup", "9"], "--warmup 9 leaves nothing"),
        ([*RUN, "--request-rate", "1", "--num-prompts", "9"], "/nowhere/tokenizer.json: not there"),
        ([*RUN, "--request-rate", "1", "--num-prompts", "9", "--goodput", "shrt:ttft:5"], "no class 'shrt'"),
        ([*RUN, "--request-rate", "1", "--num-prompts", "9", "--priority", "shrt=5"], "no class 'shrt'"),
        ([*RUN, "--trace", "/nowhere/t.jsonl"], "/nowhere/t.jsonl: cannot be read"),
        ([*RUN, "--trace", "t", "--request-rate", "1", "--mix", "1/1"], "leave out --request-rate, --mix"),
        ([*RUN, "--credential", "short=NO_SUCH_KEY_IS_SET"], "NO_SUCH_KEY_IS_SET"),
        ([*RUN, "--api-key-env-long", "NO_SUCH_KEY_IS_SET"], "credential of class long"),
        (["compare", "/nowhere/s.yaml"], "/nowhere/s.yaml: cannot be read"),
    ],
)
def test_a_wrong_command_exits_with_2_and_says_why(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("command", ["run", "compare", "capacity", "trace", "policies", "ladder", "report"])
def test_every_command_has_help_with_an_example(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "--help"]) == 0
    assert f"gateway bench {command} " in capsys.readouterr().out.partition("\nexample")[2]


def test_a_dry_run_sends_nothing_and_says_what_it_would_send(
    tokenizer_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = tmp_path / "t.jsonl"
    words = ["run", "--base-url", "http://127.0.0.1:9", "--model", "m", "--tokenizer", str(tokenizer_folder)]
    words += ["--request-rate", "5", "--num-prompts", "10", "--short-tokens", "40", "--long-tokens", "80", "--dry-run"]
    assert main([*words, "--save-trace", str(saved), "--goodput", "short:ttft:500"]) == 0
    said = capsys.readouterr().out
    assert "short: 8 requests, 320 prompt tokens, good where ttft_ms ≤ 500" in said
    assert "long: 2 requests, 160 prompt tokens, no limits" in said
    replayed = [*words[:7], "--trace", str(saved), "--dry-run"]
    assert main(replayed) == 0
    assert capsys.readouterr().out.splitlines()[:2] == said.splitlines()[:2]


def test_a_comparison_can_be_looked_at_before_it_is_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", str(written(tmp_path, SCENARIO)), "--dry-run"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 8


ENGINE = """
engines: [{name: a, url: "http://127.0.0.1:1", pool: p, scheduling: fcfs, limits: {max_num_seqs: 8}}]
pools: {p: {models: [tiny]}}
"""


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--gateway-config", "sliced=FILE"], "sliced is not among the policies"),
        (["--gateway-config", "passthrough=FILE"], "none for short-first"),
        (["--gateway-config", "FILE", "--engine-url", "http://127.0.0.1:1"], "Give one of the two"),
        ([], "Give --engine-url of the engine, or --gateway-config"),
    ],
)
def test_which_engine_a_policy_is_measured_on_is_said_for_each(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    (tmp_path / "gateway.yaml").write_text(ENGINE)
    words = [word.replace("FILE", str(tmp_path / "gateway.yaml")) for word in words]
    common = ["--model", "tiny", "--tokenizer", "t", "--rates", "1", "--num-prompts", "4", "--dry-run"]
    assert main(["policies", "passthrough", "short-first", *words, *common]) == 2
    assert said in capsys.readouterr().err
    usable = ["--engine-url", "http://127.0.0.1:1"]
    assert main(["policies", "passthrough", "short-first", *usable, *common]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2
