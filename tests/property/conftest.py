"""Random tests are judged by what they find, never by how long a busy machine takes over it."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("suite", deadline=None)
settings.load_profile("suite")
