"""Logs: one line an event on stderr. Prompts never get here; what looks like a key is blotted out at the sink."""

import logging
import re
import sys

# radixgate's own keys, and bearer tokens of any kind. The public id stays: it is there to be logged.
_SECRETS = re.compile(r"(rg-[A-Za-z0-9._-]{1,64}-)[0-9A-Za-z]{16,}|(?i:(bearer\s+))[^\s\"',]+|(://)[^/@\s]+@")


class Redacting(logging.Formatter):
    """The last formatter before the sink: also exceptions and other libraries' messages pass here."""

    def format(self, record: logging.LogRecord) -> str:
        return redacted(super().format(record))


def redacted(text: str) -> str:
    """The text without secrets."""
    return _SECRETS.sub(
        lambda found: f"{found[1] or found[2] or found[3]}****" + ("@" if found[3] else ""), text
    )


def set_up(level: str) -> None:
    """Everything from `level` on goes to stderr; libraries only when they warn."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(Redacting("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    for ours in ("gateway", "policies", "workers", "radix_cache"):
        logging.getLogger(ours).setLevel(level.upper())
