"""Which texts can be in a database at all."""


def is_storable(text: str) -> bool:
    """PostgreSQL has no NUL in texts, and says of one that is asked for what cannot be told from an outage."""
    return "\x00" not in text
