"""Strict reading of YAML files: what is read is what was meant, or an error says where and how to mend it.

Owns ConfigError and the way from a file's bytes to a validated model. Knows no setting and no policy. Never
echoes a text value: a configuration file may hold a secret by mistake.
"""

from gateway.strict_yaml.errors import ConfigError, problem
from gateway.strict_yaml.fields import NAME_RULE, LocalPath, Name, Strict, is_name, means_a_file
from gateway.strict_yaml.reader import parse, read, read_bytes

__all__ = [
    "NAME_RULE",
    "ConfigError",
    "LocalPath",
    "Name",
    "Strict",
    "is_name",
    "means_a_file",
    "parse",
    "problem",
    "read",
    "read_bytes",
]
