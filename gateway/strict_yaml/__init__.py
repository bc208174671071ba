"""Strict reading of YAML files: what is read is what was meant, or an error says where and how to mend it.

Owns ConfigError and the way from a file's bytes to a validated model. Knows no setting and no policy. Echoes no
text value but a short word where a choice among known words is asked for: a file may hold a secret by mistake.
"""

from gateway.strict_yaml.errors import ConfigError, Fault, problem, quoting
from gateway.strict_yaml.fields import NAME_RULE, LocalPath, Name, Strict, is_name, means_a_file
from gateway.strict_yaml.reader import parse, read, read_bytes

__all__ = [
    "NAME_RULE",
    "ConfigError",
    "Fault",
    "LocalPath",
    "Name",
    "Strict",
    "is_name",
    "means_a_file",
    "parse",
    "problem",
    "quoting",
    "read",
    "read_bytes",
]
