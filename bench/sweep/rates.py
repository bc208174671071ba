"""The rates of a sweep, found on the baseline before anything is compared, and then fixed for all.

Owns rates.json and the closed loops that it is made of, which lie in the folder `capacity/`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from bench import campaign_plan
from bench.campaign import UnmeasurableError
from bench.corpus import tokenizer
from bench.errors import TargetUnreachableError
from bench.load.target import ANY_CLASS, Target
from bench.options import LONG, SHORT, parse_mix
from bench.records import stored
from bench.records.hold import held
from bench.records.run import new_run_id
from bench.records.store import RunFolder
from bench.saturation import Saturation, carried
from bench.sweep.settings import BASELINE, Sweep, Way
from bench.sweep.starts import Starts

FILE = "rates.json"
FOLDER = "capacity"


def found(
    folder: Path, sweep: Sweep, starts: Starts, *, key: str | None, command: Sequence[str], say: Callable[[str], None]
) -> dict[str, float]:
    """Requests per second that B0 carries, by mix, straight at the engine; what was found before stays.

    Raises TargetUnreachableError where B0 cannot be measured, and UsageError.
    """
    with held(folder / campaign_plan.FILE):
        said = stored.read_json(folder / FILE) if (folder / FILE).is_file() else {"capacity_per_s": {}, "runs": {}}
        for mix in sweep.mixes():
            if mix in said["capacity_per_s"]:
                continue
            try:
                with starts.running(BASELINE, 0):
                    own = RunFolder(folder / FOLDER, new_run_id())
                    said["capacity_per_s"][mix] = _carried(sweep, mix, own, key=key, command=command, say=say)
            except UnmeasurableError as error:
                raise TargetUnreachableError(f"no rate can be found on {BASELINE}: {error}") from error
            said["runs"][mix] = own.path.name
            RunFolder(folder.parent, folder.name, again=True).write_json(FILE, {"found_on": BASELINE, **said})
    return dict(said["capacity_per_s"])


def _carried(
    sweep: Sweep, mix: str, folder: RunFolder, *, key: str | None, command: Sequence[str], say: Callable[[str], None]
) -> float:
    base_url = sweep.settings.engine.base_url
    scenario = sweep.scenario(Way(base_url, {}), dict.fromkeys(sweep.mixes(), 1.0))
    sent, lengths = sweep.settings.saturation, scenario.lengths
    tokens = {
        name: (own.prompt_tokens, own.output_tokens) for name, own in ((SHORT, lengths.short), (LONG, lengths.long))
    }
    what = Saturation(
        target=Target(BASELINE, base_url, {}, {}, keys={} if key is None else {ANY_CLASS: key}),
        model=scenario.model,
        form=scenario.endpoint,
        served=tokenizer.load(scenario.tokenizer),
        mix=parse_mix(mix, lengths=tokens, where="mixes"),
        seed=scenario.seeds[0],
        concurrency=sent.concurrency,
        warmup_s=sent.warmup_s,
        duration_s=sent.duration_s,
        num_prompts=sent.num_prompts,
        cache_salted=scenario.cache_salt,
    )
    per_s = carried(what, folder, command=command, metadata=scenario.metadata, echo=say).requests_per_s
    if not per_s:
        raise TargetUnreachableError(
            f"{folder.path}: {BASELINE} completed nothing of {mix}: no rate can be found on it"
        )
    say(f"{BASELINE}: {per_s:.3f} requests/s of {mix} (closed loop, {sent.concurrency} in flight)")
    return per_s
