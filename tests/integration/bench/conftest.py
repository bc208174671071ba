"""Makes the kit of the bench's tests and this folder's stage importable, and the tokenizer once for a module."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

_MODULES = {
    "bench_kit": Path(__file__).parents[2] / "unit/bench/kit.py",
    "bench_stage": Path(__file__).with_name("stage.py"),
}
for _name, _path in _MODULES.items():
    if _name not in sys.modules:
        _spec = importlib.util.spec_from_file_location(_name, _path)
        assert _spec is not None and _spec.loader is not None
        _module = importlib.util.module_from_spec(_spec)
        sys.modules[_name] = _module
        _spec.loader.exec_module(_module)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import bench_kit

    return bench_kit.a_tokenizer(tmp_path_factory.mktemp("tokenizer"))
