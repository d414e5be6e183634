"""LoRA adapters over HTTP: each is a model of its own."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.tiny_lora import build_lora, generated, merged_model
from workers.engine.errors import CheckpointInvalid, ConfigInvalid
from workers.engine_server.__main__ import main
from workers.engine_server.options import WorkerOptions, parse_lora_module
from workers.kv_events.source import EventSource
from workers.kv_events.subscriber import KvEventSubscriber

Serve = Callable[..., Any]
PROMPT = list(range(10, 60))


@pytest.fixture(scope="module")
def adapters(model: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[tuple[str, Path], ...]:
    root = tmp_path_factory.mktemp("adapters")
    return tuple(
        (name, build_lora(root / name, model, seed=seed)) for seed, name in enumerate(("sql", "chat"))
    )


@pytest.fixture
async def client(serving: Serve, adapters: tuple[tuple[str, Path], ...]) -> AsyncIterator[Any]:
    async with serving(lora_modules=adapters, served_model_name="org/tiny") as client:
        yield client


def asked(model: str | None, **more: Any) -> dict[str, Any]:
    return {"model": model, "prompt": PROMPT, "max_tokens": 8, "temperature": 0, "ignore_eos": True, **more}


async def test_the_list_of_models_names_each_adapter_with_its_parent(
    client: Any, model: Path, adapters: tuple[tuple[str, Path], ...]
) -> None:
    _, listed = await client.get("/v1/models")
    assert [(entry["id"], entry["parent"], entry["root"]) for entry in listed["data"]] == [
        ("org/tiny", None, str(model)),
        *((name, "org/tiny", str(path)) for name, path in adapters),
    ]
    assert (200, listed["data"][1]) == await client.get("/v1/models/sql")
    status, _ = await client.get("/v1/models/other")
    assert status == 404


async def test_the_model_of_a_request_names_the_adapter_that_answers(
    client: Any, model: Path, adapters: tuple[tuple[str, Path], ...]
) -> None:
    paths = {"org/tiny": None, **dict(adapters)}
    texts = []
    for name, path in paths.items():
        _, answer = await client.post("/v1/completions", asked(name))
        tokens = generated(merged_model(model, path), PROMPT, 8)
        assert answer["choices"][0]["text"] == client.worker.engine.tokenizer.decode(tokens)
        assert answer["model"] == name
        texts.append(answer["choices"][0]["text"])
    assert len(set(texts)) == 3
    _, unnamed = await client.post("/v1/completions", asked(None))
    assert (unnamed["model"], unnamed["choices"][0]["text"]) == ("org/tiny", texts[0])


async def test_a_streamed_chat_and_an_embedding_name_the_adapter(client: Any) -> None:
    messages = [{"role": "user", "content": "hello"}]
    frames = await client.stream(
        "/v1/chat/completions", {"model": "sql", "messages": messages, "max_tokens": 3}
    )
    assert {frame["model"] for frame in frames[:-1]} == {"sql"}
    vectors = {}
    for name in ("org/tiny", "sql", "chat"):
        _, answer = await client.post("/v1/embeddings", {"model": name, "input": "hello"})
        assert answer["model"] == name
        vectors[name] = tuple(answer["data"][0]["embedding"])
    assert len(set(vectors.values())) == 3


@pytest.mark.parametrize("path", ["completions", "chat/completions", "embeddings"])
async def test_an_unknown_model_is_refused(client: Any, path: str) -> None:
    body = {**asked("org/tiny:sql"), "messages": [], "input": "x"}
    status, answer = await client.post(f"/v1/{path}", body)
    assert (status, answer["error"]["code"]) == (404, "model_not_found")


async def test_a_block_of_an_adapter_is_no_hit_for_the_model_and_its_event_names_the_adapter(
    client: Any,
) -> None:
    cached = []
    for name in ("org/tiny", "sql", "sql", "chat"):
        _, answer = await client.post("/v1/completions", asked(name))
        cached.append(answer["usage"]["prompt_tokens_details"]["cached_tokens"])
    assert cached == [0, 0, 48, 0]
    publisher = client.worker.publisher
    at = "tcp://127.0.0.1"
    source = EventSource(endpoint=f"{at}:{publisher.port}", replay=f"{at}:{publisher.replay_port}")
    subscriber = KvEventSubscriber(source, publisher._context)
    batches = subscriber.batches()
    stored = [event for _ in range(3) for event in (await anext(batches)).events]
    await batches.aclose()
    assert [event.adapter for event in stored if event.parent is None] == ["", "sql", "chat"]
    assert len({event.hashes[0] for event in stored}) == len(stored)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"lora_modules": (("tiny", Path("a")),)}, "has the name of the model"),
        ({"lora_modules": (("a", Path("a")),), "disaggregation_mode": "prefill"}, "not handed over"),
        ({"lora_modules": (("a", Path("a")),) * 2}, "two LoRA adapters"),
        ({"max_lora_rank": 0}, "rank_max"),
    ],
)
def test_options_that_cannot_work_are_refused(options: dict[str, Any], named: str, model: Path) -> None:
    with pytest.raises(ConfigInvalid, match=named):
        WorkerOptions(model=model, **options).engine_config()


@pytest.mark.parametrize("text", ["sql", "=path", "sql="])
def test_a_module_without_a_name_or_a_path_is_refused(text: str) -> None:
    with pytest.raises(ConfigInvalid, match="name=path"):
        parse_lora_module(text)


async def test_a_worker_does_not_start_with_an_adapter_that_does_not_fit(
    serving: Serve, model: Path, tmp_path: Path
) -> None:
    path = build_lora(tmp_path / "a", model, use_dora=True)
    with pytest.raises(CheckpointInvalid, match=r"LoRA adapter 'sql': .*use_dora True is not supported"):
        async with serving(lora_modules=(("sql", path),)):
            pass


def test_the_process_takes_several_modules_in_one_flag(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--model", str(model), "--lora-modules", "a=x", "a=y"]
    with pytest.raises(SystemExit):
        main(words)
    assert "two LoRA adapters have the name 'a'" in capsys.readouterr().err
