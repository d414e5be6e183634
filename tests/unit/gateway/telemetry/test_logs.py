"""Log lines: secrets are blotted out of texts and tracebacks."""

import json
import logging
import sys

import pytest

from gateway.telemetry.logs import JsonFormatter, RedactingFormatter, configure_logging, redacted


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("key rg-7Kq3-" + "A" * 49 + " used", "key rg-7Kq3-**** used"),
        ("Authorization: Bearer sk-very-secret", "Authorization: Bearer ****"),
        ("redis://user:pass@host:1/0", "redis://****@host:1/0"),
        ("nothing to hide", "nothing to hide"),
    ],
)
def test_secrets_are_blotted_out_of_logs(text, expected):
    assert redacted(text) == expected


def test_secrets_in_tracebacks_are_blotted_out_too():
    try:
        raise RuntimeError("rg-7Kq3-" + "A" * 49)
    except RuntimeError as err:
        record = logging.LogRecord(
            "x", logging.ERROR, "", 1, "failed", (), (type(err), err, err.__traceback__)
        )
    for formatter in (RedactingFormatter("%(message)s"), JsonFormatter()):
        text = formatter.format(record)
        assert "A" * 20 not in text
        assert "RuntimeError" in text


def test_a_line_of_json_has_its_time_zone_and_names_request_and_trace():
    request_id = "req-" + "0a" * 16
    record = logging.LogRecord("gateway.x", logging.WARNING, "", 1, "%s\nfailed", (request_id,), None)
    record.created, record.trace_id = 1_800_000_000.25, "ab" * 16
    text = JsonFormatter().format(record)
    assert "\n" not in text
    assert json.loads(text) == {
        "at": "2027-01-15T08:00:00.250Z",
        "level": "warning",
        "logger": "gateway.x",
        "message": f"{request_id}\nfailed",
        "request_id": request_id,
        "trace_id": "ab" * 16,
    }


def test_text_that_is_not_valid_is_logged_all_the_same():
    record = logging.LogRecord("gateway.x", logging.INFO, "", 1, "a \ud800 b", (), None)
    assert json.loads(JsonFormatter().format(record))["message"] == "a ? b"


def test_a_line_of_text_has_its_time_zone():
    record = logging.LogRecord("gateway.x", logging.INFO, "", 1, "hello", (), None)
    record.created = 1_800_000_000.25
    line = RedactingFormatter("%(asctime)s %(message)s").format(record)
    assert line == "2027-01-15T08:00:00.250Z hello"


@pytest.mark.parametrize(
    ("log_format", "terminal", "as_json"),
    [("auto", True, False), ("auto", False, True), ("text", False, False), ("json", True, True)],
)
def test_lines_are_text_on_a_terminal_and_json_elsewhere(monkeypatch, log_format, terminal, as_json):
    root, ours = logging.getLogger(), ("gateway", "policies", "workers", "radix_cache")
    before = root.handlers[:], root.level, [logging.getLogger(name).level for name in ours]
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal, raising=False)
    try:
        configure_logging("info", log_format)
        (handler,) = root.handlers
        assert isinstance(handler.formatter, JsonFormatter) == as_json
    finally:
        root.handlers[:] = before[0]
        root.setLevel(before[1])
        for name, level in zip(ours, before[2], strict=True):
            logging.getLogger(name).setLevel(level)
