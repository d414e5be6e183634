"""The spellings under which a path is served, since clients join base URL and path in several ways.

/v1/chat/completions                                    as documented
/chat/completions, //chat/completions                   the base URL lacks /v1
//v1/.., /v1//.., /v1/v1/.., /openai/v1/..              a slash or a part too many; Azure's base URL
/v1/chat/completions/                                   a slash at the end
"""

from collections.abc import Iterator

PREFIXES = ("/v1", "", "/", "//v1", "/v1/", "/v1/v1", "/openai/v1")
"""The prefixes of `/chat/completions` and all other paths of the API."""

AZURE_PREFIXES = ("/openai/deployments/{deployment}", "//openai/deployments/{deployment}")
"""The prefixes of paths in Azure's API, which name the model."""


def spellings(path: str) -> Iterator[str]:
    """Yield every spelling under which a path, such as `chat/completions`, is served."""
    for prefix in PREFIXES:
        yield f"{prefix}/{path}"
        yield f"{prefix}/{path}/"
