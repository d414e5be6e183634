"""Calls to the admin API of a running gateway, and the options that say where the API is."""

import asyncio
from typing import Annotated, Any

import aiohttp
import msgspec
import typer

from gateway.cli.support.command_error import CommandError
from gateway.settings.tree import Settings

TOKEN_VARIABLE = "RADIXGATE_ADMIN_TOKEN"  # noqa: S105  (the name of a variable)
ANSWER_SECONDS_MAX = 30.0

AdminUrl = Annotated[
    str | None,
    typer.Option("--url", help="URL of the gateway's admin listener.", show_default="from the settings"),
]
AdminToken = Annotated[
    str | None,
    typer.Option(
        "--token",
        envvar=TOKEN_VARIABLE,
        help="Token of an operator; by default the setting admin.token.",
        show_default=False,
    ),
]


def call_admin_api(
    settings: Settings, url: str | None, token: str | None, path: str, body: Any = None
) -> dict[str, Any]:
    """Call a path below /admin/v1 and return the JSON object of the answer: GET without a body, POST with one.

    Args:
        settings: give the address and the token where `url` and `token` are None.
        url: address of the admin listener.
        token: bearer token of an operator.
        path: path below /admin/v1.
        body: JSON body to send.

    Raises:
        CommandError: no gateway answers, or the gateway refuses the call.
    """
    return asyncio.run(_call(url or admin_url(settings), token or _admin_token(settings), path, body))


def admin_url(settings: Settings) -> str:
    """Return the URL of the admin listener in these settings."""
    host = settings.admin.host
    return f"http://{f'[{host}]' if ':' in host else host}:{settings.admin.port}"


def _admin_token(settings: Settings) -> str | None:
    return settings.admin.token.reveal() if settings.admin.token is not None else None


async def _call(url: str, token: str | None, path: str, body: Any) -> dict[str, Any]:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    data = None
    if body is not None:
        data, headers["Content-Type"] = msgspec.json.encode(body), "application/json"
    try:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(ANSWER_SECONDS_MAX)) as http:
            method = "GET" if body is None else "POST"
            address = f"{url.rstrip('/')}/admin/v1/{path}"
            async with http.request(method, address, data=data, headers=headers) as response:
                answer = msgspec.json.decode(await response.read())
                if response.status != 200:
                    raise CommandError(f"{url}: {answer.get('detail', response.status)}")
                return dict(answer)
    except (aiohttp.ClientError, TimeoutError, ValueError, AttributeError) as err:
        raise CommandError(f"no gateway answers at {url}: {type(err).__name__}") from err
