"""Environment variables that are settings: `RADIXGATE__LISTEN__PORT` sets `listen.port`."""

ENVIRONMENT_PREFIX = "RADIXGATE__"
"""The prefix of these variables' names; two underscores separate the parts of a setting's path."""
