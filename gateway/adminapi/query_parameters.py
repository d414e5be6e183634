"""Query parameters of the admin API's views, which work without a database."""

from collections.abc import Collection, Mapping

from gateway.adminapi.problems import Problem


def check_names(parameters: Mapping[str, str], known: Collection[str]) -> None:
    """Check that all query parameters have one of these names. Raises Problem."""
    unknown = next((name for name in parameters if name not in known), None)
    if unknown is not None:
        raise Problem(
            400, f"Unknown query parameter {unknown[:100]!r}; known here: {', '.join(known) or 'none'}."
        )


def number(parameters: Mapping[str, str], name: str, default: int, most: int) -> int:
    """Return the number that a query parameter gives, or the default. Raises Problem."""
    text = parameters.get(name)
    if text is None:
        return default
    if not text.isascii() or not text.isdigit() or int(text[:9]) > most:
        raise Problem(400, f"{name}: expected a whole number from 0 to {most}.")
    return int(text)


def flag(parameters: Mapping[str, str], name: str) -> bool:
    """Return whether a query parameter is `true`. Raises Problem."""
    text = parameters.get(name, "false").lower()
    if text not in ("true", "false"):
        raise Problem(400, f"{name}: expected true or false.")
    return text == "true"
