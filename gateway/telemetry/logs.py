"""Logging: one line for each event on stderr, without prompts and with secrets blotted out.

Prompts are never logged. Texts that look like keys or credentials are blotted out in the last formatter.
"""

import logging
import re
import sys

# radixgate's own keys, and bearer tokens of any kind. The public id stays: it is there to be logged.
_SECRETS = re.compile(r"(rg-[A-Za-z0-9._-]{1,64}-)[0-9A-Za-z]{16,}|(?i:(bearer\s+))[^\s\"',]+|(://)[^/@\s]+@")


class RedactingFormatter(logging.Formatter):
    """The last log formatter, which blots out secrets, also in exceptions and in messages of other libraries."""

    def format(self, record: logging.LogRecord) -> str:
        """Format the log record without its secrets."""
        return redacted(super().format(record))


def redacted(text: str) -> str:
    """Return the text without secrets."""
    return _SECRETS.sub(
        lambda found: f"{found[1] or found[2] or found[3]}****" + ("@" if found[3] else ""), text
    )


def configure_logging(level: str) -> None:
    """Log everything from `level` on to stderr; of libraries, only warnings and errors."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(RedactingFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    for ours in ("gateway", "policies", "workers", "radix_cache"):
        logging.getLogger(ours).setLevel(level.upper())
