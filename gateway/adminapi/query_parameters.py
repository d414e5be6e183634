"""Query parameters of the admin API: their names, numbers and flags."""

from collections.abc import Collection, Mapping

from gateway.adminapi.problems import Problem
from gateway.domain.whole_number import whole_number

PAGE_LIMIT = 100
"""The default number of entries on a page."""
PAGE_LIMIT_MAX = 1000


def check_names(parameters: Mapping[str, str], known: Collection[str]) -> None:
    """Check that all query parameters have one of these names. Raises Problem."""
    unknown = next((name for name in parameters if name not in known), None)
    if unknown is not None:
        raise Problem(
            400, f"Unknown query parameter {unknown[:100]!r}; known here: {', '.join(known) or 'none'}."
        )


def number(parameters: Mapping[str, str], name: str, default: int, most: int, *, least: int = 0) -> int:
    """Return the number that a query parameter gives, or the default. Raises Problem."""
    text = parameters.get(name)
    if text is None:
        return default
    given = whole_number(text, least, most)
    if given is None:
        raise Problem(400, f"{name}: expected a whole number from {least} to {most}.")
    return given


def page_limit(parameters: Mapping[str, str]) -> int:
    """Return the `limit` parameter of a page, or the default. Raises Problem."""
    return number(parameters, "limit", PAGE_LIMIT, PAGE_LIMIT_MAX, least=1)


def flag(parameters: Mapping[str, str], name: str) -> bool:
    """Return whether a query parameter is `true`. Raises Problem."""
    text = parameters.get(name, "false").lower()
    if text not in ("true", "false"):
        raise Problem(400, f"{name}: expected true or false.")
    return text == "true"
