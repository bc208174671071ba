"""The set-up script names what a machine lacks, and how to get it, before it makes anything."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

SETUP = Path(__file__).parents[2] / "deploy" / "setup.sh"
OLD_PYTHON = "#!/bin/sh\ncase $1 in --version) echo 'Python 3.9.2';; *) exit 1;; esac\n"
# New enough, and like Debian's python3 without python3-venv.
BARE_PYTHON = "#!/bin/sh\ncase $2 in *ensurepip*) exit 1;; *%d.%d*) echo 3.12;; esac\n"
GIT = "#!/bin/sh\n"


@pytest.fixture
def setup_on(tmp_path):
    """Run the script on a machine that has these programs alone. Returns what it said; it must have failed."""

    def run(**programs):
        tools = tmp_path / "bin"
        tools.mkdir()
        for program, script in programs.items():
            (tools / program).write_text(script)
            (tools / program).chmod(0o755)
        environment = {name: value for name, value in os.environ.items() if name != "PYTHON"} | {"PATH": str(tools)}
        done = subprocess.run(
            ["/bin/sh", SETUP, tmp_path / "venv", "none.txt"],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 1
        assert not (tmp_path / "venv").exists()
        return done.stderr

    return run


def test_no_git(setup_on):
    said = setup_on(python3=BARE_PYTHON)
    assert "git is missing" in said
    assert "apt install git" in said


def test_no_python(setup_on):
    said = setup_on(git=GIT)
    assert "Python 3.11 or newer is missing" in said
    assert "apt install python3 python3-venv" in said


def test_a_python_that_is_too_old_is_named(setup_on):
    assert "Python 3.11 or newer is missing; here: Python 3.9.2." in setup_on(git=GIT, python3=OLD_PYTHON)


def test_a_newer_python_beside_an_old_one_is_taken(setup_on):
    said = setup_on(**{"git": GIT, "python3": OLD_PYTHON, "python3.12": BARE_PYTHON})
    assert said.startswith("setup: python3.12 cannot make virtual environments")


def test_a_python_without_venv_names_the_package_of_its_version(setup_on):
    assert "apt install python3.12-venv" in setup_on(git=GIT, python3=BARE_PYTHON)
