"""The spellings of a path under which it is served: clients put their base URLs together in several ways.

/v1/chat/completions                                    as documented
/chat/completions, //chat/completions                   the base URL lacks /v1
//v1/.., /v1//.., /v1/v1/.., /openai/v1/..              a slash or a part too many; Azure's base URL
/v1/chat/completions/                                   a slash at the end
"""

from collections.abc import Iterator

PREFIXES = ("/v1", "", "/", "//v1", "/v1/", "/v1/v1", "/openai/v1")
"""What stands before `/chat/completions` and all other paths of the API."""

AZURE_PREFIXES = ("/openai/deployments/{deployment}", "//openai/deployments/{deployment}")
"""What stands before the paths of a model in Azure's API, which names the model in the path."""


def spellings(path: str) -> Iterator[str]:
    """Yield every spelling under which a path, such as `chat/completions`, is served."""
    for prefix in PREFIXES:
        yield f"{prefix}/{path}"
        yield f"{prefix}/{path}/"
