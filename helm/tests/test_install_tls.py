"""An install with a certificate on every listener serves, in a cluster on this machine."""

import asyncio
import ssl
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from helm.tests.cluster.local_cluster import LocalCluster, local_cluster
from tests.fakes.scripted_worker import ScriptedWorker
from tests.fakes.tls_terminator import certificate

VALUES: dict[str, Any] = {
    "redis": {"mode": "embedded"},
    "gateway": {
        "tls": {"tenants": {"existingSecret": "llm-tls"}, "admin": {"existingSecret": "llm-tls"}},
        "endpointPicker": {"enabled": True, "tls": {"existingSecret": "llm-tls"}},
    },
    "metricsToken": {"existingSecret": "scrape"},
    "config": {"drain": {"notice_seconds": 0, "seconds": 5}},
    "metrics": {"dashboard": {"enabled": False}},
}
TOKEN = "7Wd2kQz9LmXc4RtVb8NyHs6JpGf3TaEu1DoKiYwCq0x"  # noqa: S105


def https(cluster: LocalCluster, service: str, port: int) -> str:
    return cluster.address(service, port).replace("http://", "https://")


async def metrics(cluster: LocalCluster, headers: dict[str, str]) -> int:
    """The status of a scrape."""
    url = f"{https(cluster, 'release-radixgate-admin', 8001)}/metrics"
    async with aiohttp.ClientSession() as http, http.get(url, headers=headers, ssl=False) as answer:
        return answer.status


@pytest.mark.timeout(600)
async def test_probes_scrapes_and_the_test_follow_the_certificates_of_all_listeners(tmp_path: Path) -> None:
    chain, key = certificate(tmp_path)
    async with local_cluster() as cluster, ScriptedWorker(models=["tiny-llama"]) as worker:
        cluster.put_secret("llm-tls", {"tls.crt": chain.read_text(), "tls.key": key.read_text()})
        cluster.put_secret("scrape", {"metrics-token": TOKEN})
        external = [{"id": "scripted", "kind": "openai", "url": worker.url}]
        await cluster.install({**VALUES, "workers": {"embedded": {"replicas": 0}, "external": external}})
        assert "tiny-llama answered" in await cluster.helm("test", "release", "--logs")
        assert await metrics(cluster, {"authorization": f"Bearer {TOKEN}"}) == 200
        assert await metrics(cluster, {}) in (401, 403)

        # The endpoint picker speaks HTTP/2 over TLS.
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.set_alpn_protocols(["h2"])
        host = https(cluster, "release-radixgate", 80).removeprefix("https://").partition(":")[0]
        _, writer = await asyncio.open_connection(host, 9002, ssl=context)
        assert writer.get_extra_info("ssl_object").selected_alpn_protocol() == "h2"
        writer.close()
