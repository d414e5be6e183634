"""A running gateway's admin API, as commands ask it."""

import asyncio
from typing import Annotated, Any

import aiohttp
import orjson
import typer

from gateway.cli.support.failure import Failure
from gateway.settings.tree import Settings

TOKEN_VARIABLE = "RADIXGATE_ADMIN_TOKEN"  # noqa: S105  (a name)
ANSWER_SECONDS_MAX = 30.0

AdminUrl = Annotated[
    str | None,
    typer.Option("--url", help="Of the gateway's admin listener.", show_default="as the settings say"),
]
AdminToken = Annotated[
    str | None,
    typer.Option(
        "--token", envvar=TOKEN_VARIABLE, help="Of an operator; by default admin.token.", show_default=False
    ),
]


def ask(
    settings: Settings, url: str | None, token: str | None, path: str, body: Any = None
) -> dict[str, Any]:
    """What is at a path below /admin/v1; with a body it is sent there. Raises Failure."""
    return asyncio.run(_ask(url or _admin(settings), token or _token(settings), path, body))


def _admin(settings: Settings) -> str:
    host = settings.admin.host
    return f"http://{f'[{host}]' if ':' in host else host}:{settings.admin.port}"


def _token(settings: Settings) -> str | None:
    return settings.admin.token.reveal() if settings.admin.token is not None else None


async def _ask(url: str, token: str | None, path: str, body: Any) -> dict[str, Any]:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    data = None
    if body is not None:
        data, headers["Content-Type"] = orjson.dumps(body), "application/json"
    try:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(ANSWER_SECONDS_MAX)) as http:
            method = "GET" if body is None else "POST"
            address = f"{url.rstrip('/')}/admin/v1/{path}"
            async with http.request(method, address, data=data, headers=headers) as response:
                found = orjson.loads(await response.read())
                if response.status != 200:
                    raise Failure(f"{url}: {found.get('detail', response.status)}")
                return dict(found)
    except (aiohttp.ClientError, TimeoutError, ValueError, AttributeError) as err:
        raise Failure(f"no gateway answers at {url}: {type(err).__name__}") from err
