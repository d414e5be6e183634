"""LoRA adapters behind a gateway: routed by name, with caches of their own.

Worker w0 has the adapters `sql` and `shared`, worker w1 has `chat` and `shared`; both have the model without any.
"""

import json

import pytest

from tests.fakes.scripted_worker import ScriptedWorker
from tests.fakes.tiny_lora import build_lora
from tests.integration.conftest import MODEL, PAGE_SIZE, EmbeddedWorker
from tests.integration.published_events import all_heard
from tests.integration.routing.test_prefix_cache_routing import cached, text, whole_pages

pytestmark = pytest.mark.usefixtures("steady_workers")

VLLM = {
    "data": [
        {"id": "org/llama", "owned_by": "vllm", "max_model_len": 4096, "parent": None},
        {
            "id": "sql",
            "owned_by": "vllm",
            "max_model_len": None,
            "parent": "org/llama",
            "root": "/adapters/sql",
        },
    ]
}
"""What vLLM lists with --lora-modules."""


@pytest.fixture(scope="module")
def started(checkpoint, tmp_path_factory):
    root = tmp_path_factory.mktemp("lora")
    names = ("sql", "chat", "shared")
    paths = {name: build_lora(root / name, checkpoint, seed=seed) for seed, name in enumerate(names)}
    workers = []
    for own in ("sql", "chat"):
        modules = [f"{name}={paths[name]}" for name in (own, "shared")]
        workers.append(EmbeddedWorker(checkpoint, root / f"{own}.log", "--lora-modules", *modules))
        workers[-1].start()
    yield workers
    for worker in workers:
        worker.kill()


@pytest.fixture
def workers(started):
    """Both workers, with empty caches."""
    for worker in started:
        worker.flush()
    return started


def asked(model, seed):
    return {"model": model, "prompt": text(seed), "max_tokens": 6, "temperature": 0, "ignore_eos": True}


async def complete(running, model, seed, tenant="acme", status=200):
    body, headers = asked(model, seed), running.headers(tenant)
    async with running.http.post(f"{running.url}/v1/completions", json=body, headers=headers) as response:
        answer = await response.json()
        assert response.status == status, answer
    return answer


async def test_requests_of_an_adapter_go_to_the_worker_that_has_it(gateway, workers, model_settings, records):
    async with gateway(*workers, kind="embedded", **model_settings) as running:
        texts = {}
        for name in ("sql", "chat", MODEL) * 3:
            answer = await complete(running, name, 1)
            assert answer["model"] == name
            texts.setdefault(name, set()).add(answer["choices"][0]["text"])
        refused = await complete(running, "other", 1, status=404)
        async with running.http.get(f"{running.url}/v1/models", headers=running.headers()) as response:
            listed = [entry["id"] for entry in (await response.json())["data"]]
    assert refused["error"]["code"] == "model_not_found"
    assert {"sql", "chat", "shared", MODEL} <= set(listed)
    assert {record.worker for record in records if record.model == "sql"} == {"w0"}
    assert {record.worker for record in records if record.model == "chat"} == {"w1"}
    assert [len(each) for each in texts.values()] == [1, 1, 1]
    assert len(set.union(*texts.values())) == 3


async def test_an_adapter_that_both_have_goes_to_the_worker_that_holds_the_prefix(
    gateway, workers, model_settings, records
):
    async with gateway(*workers, kind="embedded", **model_settings) as running:
        for seed in range(6):
            first = await complete(running, "shared", seed)
            await all_heard(running)
            again = await complete(running, "shared", seed)
            assert cached(first["usage"]) == 0
            assert cached(again["usage"]) == whole_pages(first["usage"]["prompt_tokens"])
    pairs = zip(records[::2], records[1::2], strict=True)
    assert all(first.worker == again.worker and again.predicted_tokens > 0 for first, again in pairs)


async def test_a_prefix_of_an_adapter_is_no_hit_for_the_model_nor_for_another_adapter(
    gateway, workers, model_settings, records
):
    async with gateway(*workers, kind="embedded", **model_settings) as running:
        for name in ("shared", MODEL, "sql", "chat"):
            answer = await complete(running, name, 3)
            assert cached(answer["usage"]) == 0
    assert [record.predicted_tokens for record in records] == [0, 0, 0, 0]


@pytest.mark.parametrize("model", ["shared", MODEL])
@pytest.mark.parametrize("holder", [0, 1])
async def test_kv_events_alone_record_which_worker_holds_a_prefix_of_the_adapter(
    gateway, workers, model_settings, records, model, holder
):
    shared = {"acme": {"isolation": {"mode": "shared"}}}
    async with gateway(*workers, kind="embedded", tenants=shared, **model_settings) as running:
        feeds, url = running.here.gateway.event_feeds, workers[holder].url
        await running.until(lambda: f"w{holder}" in running.here.gateway.index.index.followed)
        (feed,) = feeds.rank_feeds(f"w{holder}")
        # Beside the gateway: nothing but its event tells of it.
        async with running.http.post(f"{url}/v1/completions", json=asked(model, 5)) as response:
            assert response.status == 200, await response.text()
        await running.until(lambda: len(feed.follower) > 0 and not running.here.gateway.index.scripts.busy)
        assert feed.follower.unusable_pages == 0
        replica = running.here.gateway.index.index.replica
        await running.until(lambda: replica.held.get(replica.tenures.get(f"w{holder}", 0), 0) > 0)
        answer = await complete(running, model, 5)
    assert (records[0].worker, records[0].predicted_tokens) == (f"w{holder}", cached(answer["usage"]))
    assert records[0].predicted_tokens >= PAGE_SIZE


async def test_aliases_prices_and_limits_of_an_adapter_are_those_of_its_name(
    gateway, workers, model_settings, records
):
    (model,) = json.loads(model_settings["models"])
    own = {**model, "name": "sql", "aliases": ["text-to-sql"], "prices": {"input": 10, "output": 10}}
    limits = [{"requests": 2, "per": "day", "models": ["sql"]}]
    settings = {"models": json.dumps([{**model, "prices": {"input": 1, "output": 1}}, own])}
    async with gateway(*workers, kind="embedded", limits=limits, **settings) as running:
        answers = [await complete(running, name, 7) for name in ("text-to-sql", "sql", MODEL, "chat")]
        await complete(running, "text-to-sql", 7, status=429)
    assert [record.model for record in records] == ["sql", "sql", MODEL, "chat", "sql"]
    tokens = answers[0]["usage"]["total_tokens"]
    # An adapter that the settings do not name has its parent's prices.
    assert [record.spend for record in records[:4]] == [10 * tokens, 10 * tokens, tokens, tokens]


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("vllm", {"model": "sql"}),
        ("sglang", {"model": "sql", "lora_path": "sql"}),
        ("openai", {"model": "sql"}),
    ],
)
async def test_an_engine_gets_the_adapter_where_it_looks_for_it(gateway, kind, expected):
    models = json.dumps([{"name": "org/llama", "block_size": 32, "prices": {"input": 1, "output": 1}}])
    plain = ScriptedWorker(["org/llama"])
    async with plain, ScriptedWorker() as worker:
        worker.listed = json.dumps(VLLM).encode()
        async with gateway(plain, worker, kind=kind, models=models) as running:
            for _ in range(3):
                async with running.chat(model="sql", lora_path="/etc") as response:
                    assert response.status == 200, await response.text()
            found = running.here.gateway.services.catalogue.find("sql")
            assert running.here.gateway.fleet.context_length("sql") == 4096
    assert plain.seen == []
    names = ("model", "lora_path")
    bodies = [{name: seen.body[name] for name in names if name in seen.body} for seen in worker.seen]
    assert bodies == [expected] * 3
    assert (found.parent, found.block_size) == ("org/llama", 32)
