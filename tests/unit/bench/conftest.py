"""Makes the kit importable for the tests of this folder, and the tokenizer once for all of them."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

_PATH = Path(__file__).with_name("kit.py")
if "bench_kit" not in sys.modules:
    _spec = importlib.util.spec_from_file_location("bench_kit", _PATH)
    assert _spec is not None and _spec.loader is not None
    _module = importlib.util.module_from_spec(_spec)
    sys.modules["bench_kit"] = _module
    _spec.loader.exec_module(_module)


@pytest.fixture(scope="session")
def tokenizer_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import bench_kit

    return bench_kit.a_tokenizer(tmp_path_factory.mktemp("tokenizer"))
