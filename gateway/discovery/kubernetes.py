"""Finds workers of a Kubernetes Service by its EndpointSlices, which the API server of the cluster returns.

Endpoints that are not ready or are terminating are left out, and the fleet then drains them. The service account
needs `list` on `endpointslices` of the API group `discovery.k8s.io`.
"""

import ssl
from pathlib import Path
from typing import Any

import aiohttp

from gateway.discovery.source import SourceUnavailable
from gateway.settings.workers import DiscoverySettings, WorkerSettings

API = "https://kubernetes.default.svc"
"""The name of the API server in every cluster, which its certificate contains."""

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
ANSWER_SECONDS_MAX = 10.0
PAGE = 500
PAGES_MAX = 40


class KubernetesSource:
    """A source with a worker at each ready endpoint of a Service.

    Args:
        settings: the entry of `discovery`.
        api: address of the API server.
        account: directory of the service account, with token, ca.crt and namespace.
    """

    def __init__(self, settings: DiscoverySettings, api: str = API, account: Path = ACCOUNT) -> None:
        self.name = f"service {settings.name}"
        self.seconds = settings.every_seconds
        self._settings = settings
        self._api = api
        self._account = account

    async def find(self) -> list[WorkerSettings]:
        """Return the workers of all ready endpoints. Raises SourceUnavailable."""
        settings, found = self._settings, {}
        for endpoints in await self._slices():
            port = _port(endpoints.get("ports") or [], settings)
            for endpoint in endpoints.get("endpoints") or []:
                if port is None or not _is_serving(endpoint.get("conditions") or {}):
                    continue
                for address in endpoint.get("addresses") or []:
                    pod = (endpoint.get("targetRef") or {}).get("name")
                    found[address] = settings.worker(address, port, name=pod)
        return [found[address] for address in sorted(found)]

    async def _slices(self) -> list[dict[str, Any]]:
        """Return all EndpointSlices. The token is read each time, since Kubernetes renews it."""
        try:
            token = (self._account / "token").read_text(encoding="utf-8").strip()
            namespace = self._settings.namespace or (self._account / "namespace").read_text().strip()
            authority = self._account / "ca.crt"
            context = ssl.create_default_context(cafile=str(authority)) if authority.exists() else True
        except (OSError, ValueError) as err:
            raise SourceUnavailable(f"the service account cannot be read: {err}") from err
        url = f"{self._api}/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices"
        asked = {"labelSelector": f"kubernetes.io/service-name={self._settings.name}", "limit": str(PAGE)}
        slices: list[dict[str, Any]] = []
        try:
            async with aiohttp.ClientSession(
                timeout=aiohttp.ClientTimeout(total=ANSWER_SECONDS_MAX),
                headers={"Authorization": f"Bearer {token}"},
            ) as http:
                for _ in range(PAGES_MAX):
                    async with http.get(url, params=asked, ssl=context) as answer:
                        if answer.status != 200:
                            raise SourceUnavailable(
                                f"the API server answers {answer.status}{_hint(answer.status)}"
                            )
                        page = await answer.json()
                    slices += page.get("items") or []
                    following = (page.get("metadata") or {}).get("continue")
                    if not following:
                        break
                    asked = {**asked, "continue": following}
        except (aiohttp.ClientError, TimeoutError, ValueError, AttributeError) as err:
            raise SourceUnavailable(f"the API server does not answer: {type(err).__name__}") from err
        return slices


def _port(ports: list[dict[str, Any]], settings: DiscoverySettings) -> int | None:
    """Return the port with the name of the settings, else the number of the settings, else the first port."""
    if settings.port_name is not None:
        return next((port.get("port") for port in ports if port.get("name") == settings.port_name), None)
    if settings.port is not None:
        return settings.port
    return ports[0].get("port") if ports else None


def _is_serving(conditions: dict[str, Any]) -> bool:
    """Return whether an endpoint is ready; by the API, an unknown state (null) means ready."""
    return conditions.get("ready") is not False and not conditions.get("terminating")


def _hint(status: int) -> str:
    return ": the service account may not list endpointslices" if status in (401, 403) else ""
