"""The usage ledger with real requests: journal, database, queries. SQLite and PostgreSQL."""

from pathlib import Path

import pytest

from gateway.database import schema
from gateway.database.database import Database
from gateway.database.usage_query import UsageQuery, UsageReader
from gateway.database.usage_store import UsageStore
from gateway.ledger.entry import UsageEntry
from gateway.ledger.journal import Journal
from gateway.ledger.shipper import Shipper
from tests.fakes.scripted_worker import ScriptedWorker


@pytest.fixture
async def worker():
    async with ScriptedWorker() as made:
        yield made


def ledger_settings(url):
    return {"database.url": url, "database.upgrade": "always"}


async def rows_of(url):
    database = Database(url, Path())
    try:
        return [row async for page in UsageReader(database).rows(UsageQuery()) for row in page]
    finally:
        await database.close()


async def test_a_request_becomes_a_row(gateway, worker, tables_url):
    worker.then(tokens=4, prompt_tokens=10, cached_tokens=6)
    async with gateway(worker, **ledger_settings(tables_url)) as running:
        async with running.chat(stream=True, user="ada", metadata={"team": "red"}) as response:
            await response.read()
            request_id = response.headers["x-request-id"]
        await running.here.gateway.records.ledger.shipper.ship()
        (row,) = await rows_of(tables_url)
    assert row["request_id"] == request_id
    assert (row["attempt"], row["tenant"], row["key_id"]) == (1, "acme", running.keys["acme"].id)
    assert (row["asked"], row["model"], row["worker"]) == ("m", "m", "w0")
    assert (row["prompt_tokens"], row["cached_tokens"], row["output_tokens"]) == (10, 6, 4)
    assert (row["status"], row["code"], row["user"], row["tags"]) == (200, "ok", "ada", {"team": "red"})
    assert 0 <= row["ttft_ms"] <= row["duration_ms"]


async def test_a_client_that_leaves_is_billed_once_for_what_was_produced(gateway, worker, tables_url):
    worker.then(tokens=1000, gap=0.02)
    async with gateway(worker, **ledger_settings(tables_url)) as running:
        async with running.chat(stream=True) as response:
            await response.content.readany()
        await running.until(lambda: running.idle)
        await running.here.gateway.records.ledger.shipper.ship()
        (row,) = await rows_of(tables_url)
    assert (row["status"], row["code"]) == (499, "client_closed")
    assert 1 <= row["output_tokens"] <= worker.seen[0].frames < 1000
    assert row["prompt_tokens"] > 0


@pytest.mark.parametrize("limits", [[{"total_tokens": 10_000, "per": "day"}], []], ids=["limited", "free"])
async def test_each_attempt_under_one_idempotency_key_is_paid_in_the_ledger_and_in_quotas(
    gateway, worker, tables_url, limits
):
    prices = [{"name": "m", "prices": {"input": 1.0, "cached_input": 0.5, "output": 2.0}}]
    more = {"models": prices, "limits": limits, **ledger_settings(tables_url)}
    attempts = [(100, 0, 20), (100, 80, 50), (100, 0, 10)]
    async with gateway(worker, **more) as running:
        for prompt, cached, output in attempts:
            worker.then(prompt_tokens=prompt, cached_tokens=cached, tokens=output)
            body = {"model": "m", "messages": [{"role": "user", "content": "x" * 400}], "max_tokens": 60}
            headers = {**running.headers(), "Idempotency-Key": "one"}
            url = f"{running.url}/v1/chat/completions"
            async with running.http.post(url, json=body, headers=headers) as response:
                assert response.status == 200
            await running.until(lambda: running.idle)
        await running.here.gateway.records.ledger.shipper.ship()
        rows = sorted(await rows_of(tables_url), key=lambda row: row["at_ms"])
        async with running.chat(max_tokens=1) as response:
            after = response.headers.get("x-ratelimit-remaining-tokens")
    assert [(r["prompt_tokens"], r["cached_tokens"], r["output_tokens"], r["cost"]) for r in rows] == [
        (100, 0, 20, 140),
        (100, 80, 50, 160),
        (100, 0, 10, 120),
    ]
    if limits:
        # One more, of a few tokens, is reserved on top of what these have settled to: 380.
        assert 9_570 <= int(after) <= 9_620


async def test_the_savings_of_the_cache_are_reported_in_money(gateway, worker, tables_url):
    models = [
        {"name": "m", "prices": {"input": 1.0, "cached_input": 0.25, "output": 2.0}},
        {"name": "same", "prices": {"input": 1.0, "output": 2.0}},
    ]
    async with gateway(worker, models=models, **ledger_settings(tables_url)) as running:
        for cached in (80, 40, 0):
            worker.then(prompt_tokens=100, cached_tokens=cached, tokens=2)
            async with running.chat() as response:
                assert response.status == 200
        await running.here.gateway.records.ledger.shipper.ship()
        for by in ("model", "day", "key", "user"):
            url = f"{running.url}/v1/usage?by={by}"
            async with running.http.get(url, headers=running.headers()) as response:
                (group,) = (await response.json())["data"]
            assert (group["cached_tokens"], group["saved"]) == (120, 90)
        async with running.http.get(f"{running.admin}/admin/v1/usage?by=tenant") as response:
            (group,) = (await response.json())["data"]
        assert (group["tenant"], group["saved"]) == ("acme", 90)


async def test_what_no_worker_took_costs_nothing_and_stands_there_all_the_same(gateway, worker, tables_url):
    async with gateway(worker, **ledger_settings(tables_url)) as running:
        worker.then(status=500)
        async with running.chat() as response:
            assert response.status == 502
        async with running.chat(model="none") as response:
            assert response.status == 404
        async with running.http.post(f"{running.url}/v1/chat/completions", json={}) as response:
            assert response.status == 401
        await running.here.gateway.records.ledger.shipper.ship()
        failed, unknown = await rows_of(tables_url)
    assert (failed["code"], failed["prompt_tokens"], failed["output_tokens"]) == ("worker_error", 0, 0)
    assert (unknown["code"], unknown["asked"], unknown["model"]) == ("model_not_found", "none", "")


async def test_what_is_in_the_journal_when_a_gateway_ends_is_in_the_database_after(
    gateway, worker, tables_url
):
    async with gateway(worker, **ledger_settings(tables_url)) as running:
        async with running.chat() as response:
            assert response.status == 200
    assert len(await rows_of(tables_url)) == 1


class Busy(UsageStore):
    """A database beside which traffic goes on: whenever it takes something, one more request ends."""

    def __init__(self, database, journal):
        super().__init__(database)
        self.journal = journal
        self.taken = []
        self.journal.append(self.ended())

    def ended(self):
        words = dict.fromkeys(("organisation", "tenant", "key_id", "asked", "model", "surface"), "x")
        numbers = dict.fromkeys(
            ("prompt_tokens", "output_tokens", "cost", "duration_ms", "status", "at_ms"), 1
        )
        return UsageEntry(
            request_id=f"req-{len(self.taken)}",
            attempt=1,
            worker=None,
            cached_tokens=None,
            ttft_ms=None,
            code="ok",
            **words,
            **numbers,
        )

    async def write(self, rows, **more):
        new = await super().write(rows, **more)
        self.taken.append(new)
        if len(self.taken) < 50:
            self.journal.append(self.ended())
        return new


async def test_what_ends_while_the_journal_is_shipped_waits_for_the_next_time(tmp_path):
    database = Database(f"sqlite:///{tmp_path / 'usage.db'}", tmp_path)
    journal = Journal(tmp_path / "usage", bytes_max=2**20)
    try:
        await schema.ensure_current(database, upgrades=True)
        store = Busy(database, journal)
        shipper = Shipper(journal, store)
        for round_number in range(1, 4):
            await shipper.ship()
            assert store.taken == [1] * round_number
    finally:
        journal.close()
        await database.close()
