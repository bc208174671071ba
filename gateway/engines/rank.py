"""A rank that no engine has: with it an engine judges a request and does not run it.

vLLM looks at the rank of the parallel engine that a request is meant for after everything else that it can refuse, and
before anything is scheduled. Refused for its rank alone, the request is one that would run. Owns how that is asked and
how the answer is known.
"""

from __future__ import annotations

import re

HEADER = ("X-data-parallel-rank", "2147483647")
# Inside a JSON string a caller's own words have their quotes escaped: none can look like this.
_REFUSED = re.compile(rb'"message":\s*"data_parallel_rank 2147483647 is out of range')


def is_refused_alone(answer: bytes) -> bool:
    """Tell whether an answer, whole or streamed, refuses the rank and nothing else."""
    return _REFUSED.search(answer) is not None
