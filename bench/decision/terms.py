"""What is agreed before a verdict: the baseline, limits, load, and how much evidence it takes. Validated here.

version: 1
baseline: passthrough                       # default: the first arm of the records
goodput: ["short:ttft:500", "long:ttft:20000"]      # default: what the records were made with
loads: ["load 0.95"]                        # agreed; default: all mixed loads up to the capacity
engine_cost_per_hour: {isolated: 5.0, "*": 2.5}     # of all engines behind an arm; or one figure for all
alternative_cost: 0.002                     # of a response, elsewhere
"""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from bench.analysis.scores import COST_GAIN_MIN, GOOD_SHARE
from bench.scenario import ArmName, Positive, Prices, Tokens, price_of

# The drills that the measurement contract names.
DRILLS = [
    "long-burst", "decode-pressure", "context-limit", "client-leaves", "kv-pressure", "flood", "engine-dies",
    "engine-hangs", "engine-restarts", "slow-start",
]  # fmt: skip
Share = Annotated[float, Field(gt=0, le=1)]


class Terms(BaseModel):
    """See the module. requests_min: of a class under a load, over all runs of an arm; 72 give p95 an interval.

    cost_gain_min: what an answer has to cost less, as a share, to be worth a change of what holds. context_tokens: the
    longest prompt and answer that are meant to be served. isolating: arms with engines of their own for a class.
    without: arms that are left out.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    version: Annotated[int, Field(ge=1, le=1)] = 1
    baseline: ArmName | None = None
    goodput: list[str] = []
    loads: list[str] = []
    good_share: Share = GOOD_SHARE
    error_share_max: Annotated[float, Field(gt=0, lt=1)] = 0.01
    repeats_min: Annotated[int, Field(ge=2, le=100)] = 3
    requests_min: Annotated[int, Field(ge=20, le=100_000)] = 72
    engine_cost_per_hour: Prices | None = None
    cost_gain_min: Share = COST_GAIN_MIN
    alternative_cost: Positive | None = None
    context_tokens: Tokens | None = None
    drills: list[str] = DRILLS
    isolating: list[ArmName] = ["isolated"]
    without: list[ArmName] = []

    def price_of(self, arm: str, recorded: float | None) -> float | None:
        """What the engines behind an arm cost an hour; recorded: as its records say."""
        said = price_of(self.engine_cost_per_hour, arm)
        return recorded if said is None else said
