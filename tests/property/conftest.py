"""Random tests are judged by what they find, never by how long a busy machine takes over it; HYPOTHESIS_PROFILE=deep
lets them look for longer. Makes the model of the admission machines importable for the tests of this folder.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from hypothesis import HealthCheck, settings

sys.path.insert(0, str(Path(__file__).parent))

settings.register_profile("suite", deadline=None)
settings.register_profile("deep", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "suite"))
