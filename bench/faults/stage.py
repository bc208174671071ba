"""What a drill is held on: the embedded engine with its fault and a gateway before it, or what a user says is live.

Owns the processes and their files. Judges nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.errors import TargetUnreachableError
from bench.faults import late_engine
from bench.faults.drills import Drill
from bench.faults.expectations import Counted
from bench.faults.late_engine import OFFERED, sums
from bench.load.target import Target, metrics_urls
from bench.local_gateway import Callers, LocalGateway, base_of_engine
from bench.own_processes import HOST, free_ports, running
from bench.simulation.emulator.vocabulary import FOLDER

MODEL = "emulated"
STEP_TOKENS, THRESHOLD, SEQUENCES = 2048, 640, 128
# Short ones, so that a drill about silence lasts seconds.
TIMEOUTS = {"connect_s": 2, "first_byte_s": 8, "idle_s": 4}
_SETTLED_S_MAX = 10.0
_POLL_S = 0.1
_OPEN = ("gateway_receiving_requests", "gateway_queue_requests", "gateway_running_requests")


@dataclass(frozen=True, slots=True)
class Scene:
    """Where the load goes, and where the gateway's own account is read; None: nowhere."""

    target: Target
    model: str
    tokenizer: Path
    ops_url: str | None


@contextmanager
def embedded(drill: Drill, folder: Path, policy: str, callers: Callers) -> Iterator[Scene]:
    """Raises TargetUnreachableError where engine or gateway do not come up."""
    (port,) = free_ports(1)
    engine_url = f"http://{HOST}:{port}"
    gateway = LocalGateway(folder.absolute(), callers)
    options = {
        "scheduling": "priority",
        "calibration": "off",
        "limits": _limits(drill),
        "timeouts": TIMEOUTS,
    }
    base = base_of_engine(engine_url, MODEL, FOLDER, options)
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        words, log = _engine_words(drill, port), folder / f"{drill.name}-engine.log"
        if not drill.is_late:
            stack.enter_context(running(["emulate", *words], log, f"{engine_url}/health"))
        stack.enter_context(gateway.serving(drill.name, policy, base, without_engine=drill.is_late))
        if drill.is_late:
            stack.enter_context(running([gateway.ops_url, *words], log, None, module=late_engine.__name__))
        target = Target(
            name=drill.name,
            base_url=gateway.url,
            key_names=callers.variables(),
            priority={},
            metrics_urls=metrics_urls(engine_url, "the engine"),
            ops_url=gateway.ops_url,
            keys=callers.keys,
        )
        yield Scene(target, MODEL, FOLDER, gateway.ops_url)


def account(ops_url: str | None) -> Callable[[], Counted | None]:
    """Opened before the load: what it gives afterwards is of that load alone, whatever a live gateway did before.

    None where there is no ops port to ask. Raises TargetUnreachableError where nothing answers there.
    """
    if ops_url is None:
        return lambda: None
    before = _counted(ops_url)
    return lambda: _counted(ops_url).since(before)


def _counted(ops_url: str) -> Counted:
    """As soon as nothing is open there any more, or a little later."""
    give_up_at = time.monotonic() + _SETTLED_S_MAX
    while True:
        try:
            said = sums(ops_url)
        except OSError as error:
            raise TargetUnreachableError(f"{ops_url}/metrics: {error}. Is it the gateway's ops port?") from error
        found = Counted(
            said.get(OFFERED, 0.0),
            said.get("gateway_requests_total", 0.0),
            sum(said.get(name, 0.0) for name in _OPEN),
        )
        if found.open == 0 or time.monotonic() >= give_up_at:
            return found
        time.sleep(_POLL_S)


def _limits(drill: Drill) -> dict[str, int]:
    said = dict(zip(drill.engine[::2], drill.engine[1::2], strict=True))
    return {
        "max_num_batched_tokens": STEP_TOKENS,
        "long_prefill_token_threshold": THRESHOLD,
        "max_num_seqs": int(said.get("--max-num-seqs", SEQUENCES)),
    }


def _engine_words(drill: Drill, port: int) -> list[str]:
    words = ["--profile", "cpu", "--port", str(port), "--scheduling-policy", "priority"]
    words += ["--long-prefill-token-threshold", str(THRESHOLD), "--max-num-batched-tokens", str(STEP_TOKENS)]
    if "--max-num-seqs" not in drill.engine:
        words += ["--max-num-seqs", str(SEQUENCES)]
    return [*words, *drill.engine, *(word for fault in drill.faults for word in ("--fault", fault))]
