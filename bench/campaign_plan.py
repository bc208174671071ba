"""`plan.json`: all that was decided before a comparison's first run, and that one which goes on is judged by.

Owns its keys. Only the version of the bench that wrote one need understand it: another says so, and what to do.
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any, Self, TypeVar

from pydantic import BaseModel, ConfigDict, model_validator

from bench.errors import UsageError
from bench.records import stored
from bench.records.store import RunFolder
from bench.scenario import Scenario
from bench.strict_yaml import validated

FILE = "plan.json"
Plan = TypeVar("Plan", bound="BegunPlan")


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class BegunPlan(_Strict):
    """kind: the command that began it. command: as it was typed."""

    kind: str
    command: list[str]


class CampaignPlan(BegunPlan):
    """One whose loads are known from its beginning."""

    scenario: Scenario


class Gateways(_Strict):
    """By arm: the policy, and what its gateway is configured with beside it. No key, no port."""

    policies: dict[str, str]
    bases: dict[str, dict[str, Any]]


class PoliciesPlan(CampaignPlan):
    """service_classes: of each class of the requests."""

    service_classes: dict[str, str]
    gateway: Gateways

    @model_validator(mode="after")
    def _whole(self) -> Self:
        for arm in self.scenario.arms:
            if arm.name not in self.gateway.policies or arm.name not in self.gateway.bases:
                raise ValueError(f"no gateway for the arm {arm.name}")
        return self


class LadderPlan(CampaignPlan):
    """When a rate holds, and how many are tried inside the last gap."""

    good_share: float
    refine: int


def begun(result_dir: Path, name: str, plan: BegunPlan) -> Path:
    """A new folder with its plan. Raises UsageError."""
    folder = RunFolder(result_dir, name)
    folder.write_json(FILE, plan.model_dump(mode="json"))
    return folder.path


def resumed(folder: Path, kind: str, plan: type[Plan]) -> Plan:
    """The plan of a folder that goes on. Raises UsageError where it is another command's, or another version's."""
    file = folder / FILE
    said = stored.read_json(file)
    if said.get("kind") != kind:
        raise UsageError(f"{folder}: a `gateway bench {said.get('kind')}` began it: go on with that command.")
    try:
        return validated(said, plan, str(file))
    except UsageError as error:
        raise UsageError(f"{_what(error)}. {_instead(said)}") from error


def _what(error: UsageError) -> str:
    """File, key and problem; what to do about a key of one's own writing is no help here."""
    return str(error).partition(". ")[0].rstrip(".")


def _instead(said: dict[str, Any]) -> str:
    command = said.get("command")
    anew = f"Begin anew: {shlex.join(map(str, command))}" if isinstance(command, list) else "Begin anew"
    return f"Another version of the bench wrote it, and only that one can go on with it. {anew}"
