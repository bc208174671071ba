"""Open files: each connection of a caller may need an engine's beside it.

Owns how many connections the system's limit carries, and whether any file is left. Beyond it the gateway could reach
no engine any more, so the bound on connections never lies above.
"""

from __future__ import annotations

import os
import resource

import structlog

OWN_FILES = 256  # open files that are no request's


def raise_limit(connections_max: int) -> None:
    """Allow as many open files as the system lets us; what is wanted where it sets no limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = _wanted(connections_max) if hard == resource.RLIM_INFINITY else hard
    if soft < allowed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))


def connections_that_fit(connections_max: int, *, is_stated: bool) -> int:
    """Return the bound on connections: as configured, or what the limit of open files carries.

    It is said where somebody stated more, and where a default is missed by more than half.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _wanted(connections_max)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return connections_max
    fits = max(1, (soft - OWN_FILES) // 2)
    if is_stated or fits < connections_max // 2:
        fix = f"Start with `ulimit -n {wanted}`, or set limits.connections_max to {fits}"
        structlog.get_logger().warning("few_open_files", allowed=soft, wanted=wanted, connections_max=fits, fix=fix)
    return fits


def are_used_up() -> bool:
    """Whether not one more can be opened now. A failure says so itself, but where a library lost its cause."""
    try:
        os.close(os.open(os.devnull, os.O_RDONLY))
    except OSError:
        return True
    return False


def _wanted(connections_max: int) -> int:
    return 2 * connections_max + OWN_FILES
