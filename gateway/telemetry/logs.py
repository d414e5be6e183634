"""Logging: one line for each event on stderr, without prompts and with secrets masked.

    text   2026-11-23T06:24:00.123Z WARNING gateway.fleet.fleet: worker w1 is down
    json   {"at": "2026-11-23T06:24:00.123Z", "level": "warning", "logger": "gateway.fleet.fleet", "message": ...}

Times are UTC. Prompts are never logged. Texts that look like keys or credentials are masked in the last formatter.
"""

import logging
import re
import sys
from datetime import UTC, datetime
from typing import Literal

import msgspec

LogFormat = Literal["auto", "text", "json"]

# radixgate's own keys, and bearer tokens of any kind. The public id stays: it is there to be logged.
_SECRETS = re.compile(r"(rg-[A-Za-z0-9._-]{1,64}-)[0-9A-Za-z]{16,}|(?i:(bearer\s+))[^\s\"',]+|(://)[^/@\s]+@")
_REQUEST_ID = re.compile(r"\breq-[0-9a-f]{32}\b")


class RedactingFormatter(logging.Formatter):
    """The last log formatter, which masks secrets, also in exceptions and in messages of other libraries."""

    def format(self, record: logging.LogRecord) -> str:
        """Format the log record without its secrets."""
        return redacted(super().format(record))

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:
        """Return the time of the record in UTC (RFC 3339)."""
        return _moment(record)


class JsonFormatter(RedactingFormatter):
    """Formats log records as JSON objects of one line each."""

    def format(self, record: logging.LogRecord) -> str:
        """Format the log record as a JSON object, without its secrets."""
        message = redacted(record.getMessage())
        fields = {
            "at": _moment(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": message,
        }
        if found := _REQUEST_ID.search(message):
            fields["request_id"] = found[0]
        if trace_id := getattr(record, "trace_id", None):
            fields["trace_id"] = trace_id
        if record.exc_info:
            fields["exception"] = redacted(self.formatException(record.exc_info))
        # Half of a surrogate pair, which a client may have sent, is no text.
        clean = {name: text.encode("utf-8", "replace").decode() for name, text in fields.items()}
        return msgspec.json.encode(clean).decode()


def redacted(text: str) -> str:
    """Return the text without secrets."""
    return _SECRETS.sub(
        lambda found: f"{found[1] or found[2] or found[3]}****" + ("@" if found[3] else ""), text
    )


def configure_logging(level: str, log_format: LogFormat = "text") -> None:
    """Log everything from `level` on to stderr; of libraries, only warnings and errors.

    `auto`: text to a terminal, JSON to everything else.
    """
    handler = logging.StreamHandler(sys.stderr)
    as_json = log_format == "json" or (log_format == "auto" and not sys.stderr.isatty())
    text = RedactingFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
    handler.setFormatter(JsonFormatter() if as_json else text)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    for ours in ("gateway", "policies", "workers", "radix_cache"):
        logging.getLogger(ours).setLevel(level.upper())


def _moment(record: logging.LogRecord) -> str:
    at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
    return at.replace("+00:00", "Z")
