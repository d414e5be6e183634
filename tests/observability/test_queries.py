"""Every query of dashboard and alerts on a real Prometheus that scrapes a gateway under real requests."""

import asyncio
import json
import re
import subprocess
from contextlib import contextmanager, suppress
from pathlib import Path

import aiohttp
import pytest
import yaml

from tests.fakes.scripted_worker import ScriptedWorker
from tests.observability.test_alerts import PROMTOOL, RULES
from tests.stage.ports import free_port

ROOT = Path(__file__).parents[2]
DASHBOARD = json.loads((ROOT / "helm/radixgate/dashboards/radixgate.json").read_text(encoding="utf-8"))
PROMETHEUS = PROMTOOL.with_name("prometheus")
NO_DATA = {
    # Each needs a part that this run does without.
    *("provider_resting", "provider_limited_total", "token_issuer_up", "token_issuer_fresh"),
    *("shadow_", "quota_alerts_total", "quota_shadow_refusals_total", "index_group_blocks"),
    *("worker_events", "worker_pages"),
}
SCRAPES = 4

pytestmark = [
    pytest.mark.skipif(not PROMETHEUS.exists(), reason="make test-observability installs Prometheus"),
    pytest.mark.timeout(180),
]


def queries():
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"]


def filled(query):
    """Return the query with values for Grafana's variables."""
    query = re.sub(r"\$__(rate_interval|range|interval)", "30s", query)
    return re.sub(r"\$(job|tenant|model|worker|class)", ".*", query)


@contextmanager
def prometheus(target, directory):
    """A Prometheus that scrapes this address each second; its URL."""
    port = free_port()
    config = {
        "global": {"scrape_interval": "1s"},
        "scrape_configs": [
            {
                "job_name": "radixgate-admin",
                "static_configs": [{"targets": [target], "labels": {"namespace": "llm"}}],
            }
        ],
    }
    (directory / "prometheus.yml").write_text(yaml.safe_dump(config))
    command = [
        PROMETHEUS,
        f"--config.file={directory}/prometheus.yml",
        f"--storage.tsdb.path={directory}/data",
    ]
    command += [f"--web.listen-address=127.0.0.1:{port}", "--enable-feature=exemplar-storage"]
    with open(directory / "prometheus.log", "wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(20)


async def test_every_query_of_the_dashboard_and_the_alerts_has_an_answer(gateway, tmp_path):
    async with ScriptedWorker() as worker, ScriptedWorker() as other:
        settings = {"telemetry.otlp_endpoint": "http://127.0.0.1:9", "telemetry.sample_ratio": "1.0"}
        async with gateway(worker, other, **settings) as running:
            with prometheus(running.admin.removeprefix("http://"), tmp_path) as url:
                async with asyncio.timeout(120):
                    await traffic_until_scraped(running, url)
                failed, empty = [], []
                for title, query in queries():
                    answer = await ask(running.http, url, filled(query))
                    if answer["status"] != "success":
                        failed.append((title, query, answer))
                    elif not answer["data"]["result"] and not any(name in query for name in NO_DATA):
                        empty.append((title, query))
                assert not failed
                assert not empty
                for group in yaml.safe_load(RULES)["groups"]:
                    for rule in group["rules"]:
                        assert (await ask(running.http, url, rule["expr"]))["status"] == "success", rule
                examples = await ask(
                    running.http, url, "radixgate_request_duration_seconds_bucket", "query_exemplars"
                )
                assert examples["data"][0]["exemplars"][0]["labels"]["trace_id"]


async def traffic_until_scraped(running, url):
    """Send requests until Prometheus has seen the gateway's counters rise."""
    rising = 'sum(rate(radixgate_requests_total{code="ok"}[30s])) > 0'
    seen = 0
    while seen < SCRAPES:
        async with running.chat(stream=True) as response:
            await response.read()
        async with running.chat("x" * 400, tenant="globex") as response:
            await response.read()
        async with running.chat(model="unknown") as response:
            assert response.status == 404
        await asyncio.sleep(0.5)
        with suppress(aiohttp.ClientError):
            seen += bool((await ask(running.http, url, rising))["data"]["result"])


async def ask(http, url, query, path="query"):
    parameters = {"query": query, "start": "0", "end": "4000000000"} if path != "query" else {"query": query}
    async with http.get(f"{url}/api/v1/{path}", params=parameters) as response:
        return await response.json()
