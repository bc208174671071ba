"""The rules of the house that no linter knows."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TRACKED = [
    ROOT / line
    for line in subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.splitlines()
    if (ROOT / line).is_file()
]
MODULES = [path for path in TRACKED if path.suffix == ".py" and path.relative_to(ROOT).parts[0] != "tests"]
TEXTS = [path for path in TRACKED if path.suffix in {".py", ".md", ".yaml", ".toml", ".txt", ".sh", ".json", ".in"}]

LINES_MAX = 400
TOP_LEVEL = {"gateway", "bench", "policies", "deploy", "tests", "docs", ".ci"}


def name(path):
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", MODULES, ids=name)
def test_a_module_is_short_and_opens_by_saying_what_it_owns(path):
    text = path.read_text()
    assert len(text.splitlines()) <= LINES_MAX
    assert not text.strip() or ast.get_docstring(ast.parse(text)), "a module opens with a docstring"


def test_folders_at_the_top_are_the_houses_own():
    assert {path.relative_to(ROOT).parts[0] for path in TRACKED if len(path.relative_to(ROOT).parts) > 1} <= TOP_LEVEL


def test_nothing_is_left_for_later():
    marks = re.compile(r"\b(TO" + r"DO|FIX" + r"ME|XX" + r"X)\b|raise NotImplemented" + r"Error")
    assert {name(path) for path in TEXTS if marks.search(path.read_text())} == set()


def test_no_absolute_path_of_a_machine_and_no_package_index_is_named():
    marks = re.compile(r"/(?:root|home/\w+)/|pythonhost" + r"ed|py" + r"pi\.org|download\.pytor" + r"ch")
    assert {name(path) for path in TEXTS if marks.search(path.read_text())} == set()


def test_no_pattern_repeats_a_group_possessively():
    """Before Python 3.11.5 such a repetition matches too much: it keeps what its last, failed turn had matched."""
    possessive = re.compile(r"(?<!\\)\)(?:[*+?]|\{[0-9,]*\})" + r"\+")
    assert {name(path) for path in MODULES if possessive.search(path.read_text())} == set()


def test_unit_and_property_tests_never_sleep():
    sleeps = re.compile(r"time\.sleep\(|asyncio\.sleep\((?!0\))")
    quick = [path for path in TRACKED if name(path).startswith(("tests/unit/", "tests/property/"))]
    assert {name(path) for path in quick if path.suffix == ".py" and sleeps.search(path.read_text())} == set()


def test_every_case_names_tests_that_are_there():
    rows = re.findall(r"^\| ([A-Z]{3}-\d+) \|.*\| (.+) \|$", (ROOT / "tests/CASES.md").read_text(), re.MULTILINE)
    named = {case: re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", tests) for case, tests in rows}
    functions = {path: set() for tests in named.values() for path, _ in tests}
    for path, found in functions.items():
        tree = ast.parse((ROOT / path).read_text())
        found |= {each.name for each in ast.walk(tree) if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)}
    assert len(named) == len(rows)
    assert [(case, test) for case, tests in named.items() for path, test in tests if test not in functions[path]] == []
    assert [case for case, tests in rows if not named[case] and tests != "not yet"] == []


def test_links_between_the_documents_lead_somewhere():
    broken = [
        (name(path), target)
        for path in TRACKED
        if path.suffix == ".md"
        for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", path.read_text())
        if not (path.parent / target).exists()
    ]
    assert broken == []
