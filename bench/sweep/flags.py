"""Flags on an engine's command line: put in, read, and held against the help of the installed version. Pure, but for
`printed_help`, which runs the command that prints it.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from bench.errors import UsageError

Value = bool | int | float | str
HELP_S_MAX = 600.0  # an engine's own imports take a minute on a cold disk
_ALL, _PLAIN = "--help=all", "--help"


def with_flags(command: Sequence[str], flags: Mapping[str, Value]) -> list[str]:
    """The command with each flag in the place of what it says of it, or at its end. True: --flag, False: --no-flag."""
    words = list(command)
    for name, value in flags.items():
        places = _places(words, name, is_bare=isinstance(value, bool))
        at = places[0][0] if places else len(words)
        for place, length in reversed(places):
            del words[place : place + length]
        words[at:at] = _spelled(name, value)
    return words


def stated(command: Sequence[str], name: str) -> Value | None:
    """What a command says of a flag, the last time that it does; None: nothing."""
    places = _places(command, name)
    if not places:
        return None
    at, length = places[-1]
    flag, equals, value = command[at].partition("=")
    if equals:
        return literal(value)
    return literal(command[at + 1]) if length > 1 else not _bare(flag).startswith("no_")


def literal(text: str) -> Value:
    """A number or a truth where the word is one, as YAML and Python spell them."""
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        return text
    return value if isinstance(value, bool | int | float) else text


@dataclass(frozen=True, slots=True)
class Help:
    """What an engine's own help says."""

    text: str

    def unknown(self, names: Sequence[str]) -> list[str]:
        """Those of the flags that it does not have."""
        return [name for name in names if self._section(name) is None]

    def default(self, name: str) -> Value | None:
        """What is in force where nobody says anything; None: the help does not tell."""
        found = re.findall(r"\(default: ([^()]*)\)", " ".join((self._section(name) or "").split()))
        return None if not found or found[-1] == "None" else literal(found[-1])

    def _section(self, name: str) -> str | None:
        """From the line that begins with the flag to the next flag's. A mention elsewhere may say that it is gone."""
        flag = re.escape(f"--{name.replace('_', '-')}")
        until_the_next = r".*?(?=^ {1,4}-|^\S|\Z)"
        pattern = rf"^ +(?:-\w[^\n]*, )?{flag}(?![\w-]){until_the_next}"
        found = re.search(pattern, self.text, re.MULTILINE | re.DOTALL)
        return None if found is None else found.group()


def help_commands(command: Sequence[str], stated_help: Sequence[str]) -> list[list[str]]:
    """What may print it, the first one first: what the user says, else the words before the first flag, and --help."""
    if stated_help:
        return [list(stated_help)]
    before = [*command]
    for at, word in enumerate(command):
        if word.startswith("--"):
            before = list(command[:at])
            break
    return [[*before, _ALL], [*before, _PLAIN]]


def printed_help(
    commands: Sequence[Sequence[str]], environment: Mapping[str, str], where: str, folder: Path | None = None
) -> Help:
    """Of the first that prints one. folder: that they are run in. Raises UsageError, naming `where`."""
    problem = ""
    for words in commands:
        try:
            done = subprocess.run(  # noqa: S603 - the user's engine
                words,
                env=environment,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=HELP_S_MAX,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            problem = f"`{' '.join(words)}`: {error}"
            continue
        text = done.stdout.decode(errors="replace")
        if done.returncode == 0 and "--" in text:
            return Help(text)
        said = (done.stderr.decode(errors="replace").strip().splitlines() or ["no word of why"])[-1]
        problem = f"`{' '.join(words)}` ended with code {done.returncode}: {said}"
    raise UsageError(f"{where}: engine.help: {problem}. Give the command that prints the engine's flags.")


def _places(words: Sequence[str], name: str, *, is_bare: bool = False) -> list[tuple[int, int]]:
    """Where a flag stands, and how many words it takes. is_bare: it has no value, and what follows is not its own."""
    found = []
    for at, word in enumerate(words):
        flag, equals, _ = word.partition("=")
        if not flag.startswith("--") or _bare(flag) not in (name, f"no_{name}"):
            continue
        is_bare_here = is_bare or _bare(flag) != name
        ends = equals or is_bare_here or at + 1 == len(words) or re.match(r"--?[a-zA-Z]|--$", words[at + 1])
        found.append((at, 1 if ends else 2))
    return found


def _bare(flag: str) -> str:
    """As Python spells it; vLLM takes both spellings."""
    return flag.removeprefix("--").replace("-", "_")


def _spelled(name: str, value: Value) -> list[str]:
    flag = name.replace("_", "-")
    if isinstance(value, bool):
        return [f"--{flag}" if value else f"--no-{flag}"]
    return [f"--{flag}", str(value)]
