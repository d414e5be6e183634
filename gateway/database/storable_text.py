"""The check of texts that a database cannot store."""


def is_storable(text: str) -> bool:
    """Return whether the text has no NUL.

    PostgreSQL has no NUL in texts, and reports a query for one in the same way as an outage.
    """
    return "\x00" not in text
