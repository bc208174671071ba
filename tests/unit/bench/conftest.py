"""Makes the kits importable for the tests of this folder, and the tokenizer once for all of them."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

for _name, _file in (("bench_kit", "kit.py"), ("comparison_kit", "comparison_kit.py")):
    if _name not in sys.modules:
        _spec = importlib.util.spec_from_file_location(_name, Path(__file__).with_name(_file))
        assert _spec is not None and _spec.loader is not None
        _module = importlib.util.module_from_spec(_spec)
        sys.modules[_name] = _module
        _spec.loader.exec_module(_module)


@pytest.fixture(scope="session")
def tokenizer_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import bench_kit

    return bench_kit.a_tokenizer(tmp_path_factory.mktemp("tokenizer"))
