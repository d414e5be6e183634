"""Calls to the admin API of a running gateway, and the options with the address and token of the API."""

import asyncio
from dataclasses import dataclass
from typing import Annotated, Any

import aiohttp
import msgspec
import typer

from gateway.cli.support.command_error import CommandError
from gateway.cli.support.deployment import ADMIN, find_deployment
from gateway.cli.support.options import Assignments, ConfigFile
from gateway.settings.sources import load_settings
from gateway.settings.tree import Settings
from workers.system_error import reason_of

TOKEN_VARIABLE = "RADIXGATE_ADMIN_TOKEN"  # noqa: S105  (the name of a variable)
ANSWER_SECONDS_MAX = 30.0

AdminUrl = Annotated[
    str | None,
    typer.Option("--url", help="URL of the gateway's admin listener.", show_default="of the running gateway"),
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


@dataclass(frozen=True, slots=True)
class AdminApi:
    """The admin API of a running gateway."""

    url: str
    """Address of the admin listener."""
    token: str | None
    """Bearer token of an operator."""

    def call(self, path: str, body: Any = None) -> dict[str, Any]:
        """Call a path below /admin/v1 and return the JSON object of the answer: GET without a body, else POST.

        Raises CommandError: no gateway answers, or the gateway refuses the call.
        """
        return asyncio.run(_call(self.url, self.token, path, body))


def find_admin_api(
    config: ConfigFile, assignments: Assignments, url: AdminUrl, token: AdminToken
) -> AdminApi:
    """Return the admin API that the options name, else that of the gateway that runs on this machine.

    Raises SettingsProblem, CommandError.
    """
    if url is None:
        deployment = find_deployment(config, assignments, ADMIN, must_exist=False)
        settings, found = deployment.settings, deployment.admin_url
    else:
        settings = load_settings(config, assignments=assignments or (), complete=False).settings
        found = url if "://" in url else f"http://{url}"
    return AdminApi(found or admin_url(settings), token or _admin_token(settings))


def admin_url(settings: Settings) -> str:
    """Return the URL of the admin listener in these settings."""
    host, scheme = settings.admin.host, "http" if settings.admin.tls is None else "https"
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{settings.admin.port}"


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
                if response.status == 200:
                    return dict(answer)
                raise CommandError(f"{url}: {answer['detail']}")
    except (aiohttp.ClientError, TimeoutError) as err:
        raise CommandError(
            f"no gateway answers at {url}: {connection_problem(err)} (--url names the admin listener)"
        ) from err
    # The answer is not JSON, no object, or no description of a problem.
    except (ValueError, TypeError, KeyError) as err:
        raise CommandError(
            f"{url} is not the admin listener of a gateway (--url names it, by default port 8001)"
        ) from err


def connection_problem(err: Exception) -> str:
    """Return what kept a call from being answered."""
    if isinstance(err, aiohttp.ClientConnectorError):
        return reason_of(err.os_error)
    return str(err) or "not in time"
