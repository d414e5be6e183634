"""The operation that shows the settings in force with their sources. Secrets and hashes of keys are masked."""

import asyncio
from collections.abc import Mapping
from itertools import islice

import msgspec

from gateway.adminapi.operation import Operation, OperationRequest, OperationResponse
from gateway.adminapi.query_parameters import check_names, flag, number
from gateway.process.settings_in_force import SettingsInForce
from gateway.settings.sources import DEFAULT

SETTINGS = 500
SETTINGS_MAX = 5000
QUERY_PARAMETERS = {
    "find": "Only settings with this text in their path or source.",
    "changed": "`true`: only settings that are not at their default.",
    "offset": "Settings to skip.",
    "limit": f"Settings at most, up to {SETTINGS_MAX}; {SETTINGS} by default.",
}
ROOT = "$."
HASH = ".hash"
MASKED = '"****"'


class SettingShown(msgspec.Struct, kw_only=True):
    """One setting. `value`: as JSON. `source`: a file, an environment variable, an option, or `default`."""

    setting: str
    value: str
    source: str


class SettingsShown(msgspec.Struct, kw_only=True):
    """The settings in force at this gateway. `awaiting_restart`: paths that a reload found changed.

    `total`: number of settings that match.
    """

    data: list[SettingShown]
    total: int
    awaiting_restart: list[str]


def operations(in_force: SettingsInForce) -> list[Operation]:
    """Return the operation that shows the settings."""

    async def show(request: OperationRequest) -> OperationResponse:
        return OperationResponse(value=await settings_shown(in_force, request.http.query))

    return [
        Operation(
            method="GET",
            path="/settings",
            role="viewer",
            summary="Show the settings in force at this gateway, each with its source. Secrets are masked.",
            handle=show,
            response_type=SettingsShown,
            query_parameters=QUERY_PARAMETERS,
        )
    ]


async def settings_shown(in_force: SettingsInForce, parameters: Mapping[str, str]) -> SettingsShown:
    """Return the settings that match the query parameters. Raises Problem."""
    check_names(parameters, QUERY_PARAMETERS)
    text, changed = parameters.get("find", ""), flag(parameters, "changed")
    offset = number(parameters, "offset", 0, 10**9)
    limit = number(parameters, "limit", SETTINGS, SETTINGS_MAX)
    # A file with thousands of tenants has many leaves.
    found = await asyncio.to_thread(_matching, in_force, text, changed)
    return SettingsShown(
        data=[*islice(found, offset, offset + limit)],
        total=len(found),
        awaiting_restart=[*in_force.awaiting_restart],
    )


def _matching(in_force: SettingsInForce, text: str, changed: bool) -> list[SettingShown]:
    return [
        SettingShown(
            setting=path.removeprefix(ROOT), value=MASKED if path.endswith(HASH) else value, source=source
        )
        for path, value, source in in_force.leaves()
        if (text in path.removeprefix(ROOT) or text in source) and not (changed and source == DEFAULT)
    ]
