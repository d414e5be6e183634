"""Numbers of things in the texts that commands print."""


def counted(number: int, name: str) -> str:
    """Return a number with the name of what is counted, as in `1 key` and `2 keys`."""
    return f"{number} {name}" + ("" if number == 1 else "s")
