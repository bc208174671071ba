"""The two ways in which the bench gives up before it has measured anything."""


class UsageError(Exception):
    """An option, a file or the environment does not allow what was asked for. Exit code 2.

    The message names the place (option, or file and key path), the problem and the fix.
    """


class TargetUnreachableError(Exception):
    """The target or its engine does not answer, so that no measurement was begun. Exit code 1."""
