"""Coverage-led fuzzing by hand: python tests/fuzz/with_atheris.py ENTRY [CORPUS_FOLDER] [-max_total_time=60 ...].

Needs atheris, which is no requirement of this repository: pip install atheris. The entries and their claims are those
of gateway.testing.fuzz, which the suite runs on drawn examples.
"""

from __future__ import annotations

import sys
from pathlib import Path

import atheris

sys.path.insert(0, str(Path(__file__).parents[2]))

with atheris.instrument_imports(include=["gateway.wire"]):
    from gateway.testing.fuzz import ENTRIES

if __name__ == "__main__":
    entry = ENTRIES[sys.argv.pop(1)]
    atheris.Setup(sys.argv, entry)
    atheris.Fuzz()
