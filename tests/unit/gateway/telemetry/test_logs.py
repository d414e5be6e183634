"""Log lines: secrets are blotted out of texts and tracebacks."""

import logging

import pytest

from gateway.telemetry.logs import RedactingFormatter, redacted


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
    assert "A" * 20 not in RedactingFormatter("%(message)s").format(record)
