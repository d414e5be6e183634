"""The memory that the chart gives to gateways: what its settings may take together stays below the limit."""

from pathlib import Path
from typing import Any

import pytest

from gateway.kv_index.shared_index_parts import FOLLOWERS_SHARE, OWN_SHARE
from gateway.planning.costs import MEASURED
from gateway.settings.models import ModelSettings
from gateway.settings.tree import Settings
from gateway.tokenization.encoder_child import MEMORY_BYTES_MAX
from gateway.wiring.fleet_parts import ENCODING_THREADS
from helm.tests.rendering import helm, render
from helm.tests.test_chart_settings import settings_of

MIB = 2**20
PROCESS, TOKENIZER, CHILD = 192 * MIB, 112 * MIB, 64 * MIB
"""As _memory.tpl has them: a process, a tokenizer that was read, and the rest of a process that encodes."""
VALKEY = 64 * MIB

TOKENIZED = {"name": "m", "tokenizer": "/models/m"}


def needed(settings: Settings) -> int:
    """Return what a gateway's processes may take together."""
    caches = sum(m.tokenizer_memory_bytes_max for m in settings.models if m.tokenizer != "text")
    tokenizers = [m for m in settings.models if m.tokenizer not in ("text", "worker")]
    child = min(MEMORY_BYTES_MAX, CHILD + TOKENIZER * len(tokenizers)) if tokenizers else 0
    index = settings.index.memory_bytes_max
    process = PROCESS + caches + TOKENIZER * len(tokenizers) + ENCODING_THREADS * child
    process += index + index // FOLLOWERS_SHARE + 2 * (index // OWN_SHARE) + settings.listen.memory_bytes_max
    details = settings.telemetry.requests.kept_max - Settings().telemetry.requests.kept_max
    process += max(0, details) * 4 * 2048
    valkey = index + VALKEY if settings.redis.url == "embedded" else 0
    return process * settings.listen.processes + valkey


GIB = 1024 * MIB
ELSEWHERE: dict[str, Any] = {"redis": {"mode": "external", "external": {"url": "redis://r"}}}
ROOM: dict[str, Any] = {"gateway": {"resources": {"limits": {"memory": "8Gi"}}}, **ELSEWHERE}

RAISED: dict[str, dict[str, Any]] = {
    "nothing": {},
    "processes": {"config": {"listen": {"processes": 4}}},
    "index": {"config": {"index": {"memory_bytes_max": 3 * GIB}}},
    "requests": {"config": {"listen": {"memory_bytes_max": 2 * GIB}}},
    "a tokenizer": {"models": [TOKENIZED]},
    "tokenizers in processes": {
        "models": [{**TOKENIZED, "name": str(n)} for n in range(3)],
        "config": {"listen": {"processes": 3}},
    },
    "caches": {"models": [{**TOKENIZED, "tokenizer_memory_bytes_max": 3 * GIB}]},
    "caches of workers' tokens": {
        "models": [{"name": "m", "tokenizer": "worker", "tokenizer_memory_bytes_max": 3 * GIB}]
    },
    "request details": {"config": {"telemetry": {"requests": {"kept_max": 100_000}}}},
    "a Valkey inside": {"redis": {"mode": "embedded"}},
    "a Valkey beside processes": {"redis": {"mode": "embedded"}, "config": {"listen": {"processes": 3}}},
}


@pytest.mark.parametrize("raised", RAISED)
def test_what_a_gateway_may_take_stays_below_its_limit(raised: str, tmp_path: Path) -> None:
    settings = settings_of(render({**ROOM, **RAISED[raised]}), tmp_path)
    assert 0.99 * 8 * GIB < needed(settings) <= 8 * GIB


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"config": {"index": {"memory_bytes_max": 512 * MIB}}}, "index.memory_bytes_max twice"),
        ({"config": {"listen": {"processes": 6}}}, "6 processes"),
        ({"config": {"listen": {"memory_bytes_max": GIB}}}, "listen.memory_bytes_max"),
        ({"models": [{**TOKENIZED, "tokenizer_memory_bytes_max": GIB}]}, "1 tokenizers"),
        ({"models": [{**TOKENIZED, "name": str(n)} for n in range(4)]}, "4 tokenizers"),
        ({"config": {"telemetry": {"requests": {"kept_max": 100_000}}}}, "request details"),
        (
            {"gateway": {"resources": {"limits": {"memory": "256Mi"}}}},
            "gateway.resources.limits.memory is 256Mi",
        ),
        ({"gateway": {"extraArgs": ["--processes", "4"]}}, "set config.listen.processes"),
        ({"gateway": {"extraArgs": ["--processes=4"]}}, "set config.listen.processes"),
        ({"gateway": {"extraArgs": ["--set", "listen.processes=4"]}}, "set config.listen.processes"),
    ],
)
def test_what_raises_the_memory_of_a_gateway_above_its_limit_is_refused(
    values: dict[str, Any], sentence: str
) -> None:
    done = helm(values)
    assert done.returncode != 0
    assert "gateway.resources.limits.memory" in done.stderr or "extraArgs" in done.stderr
    assert sentence in done.stderr


def test_the_bundled_valkey_has_room_for_the_index_that_gateways_may_fill(tmp_path: Path) -> None:
    large: dict[str, Any] = {"gateway": {"resources": {"limits": {"memory": "4Gi"}}}}
    derived = settings_of(render(large), tmp_path)
    assert derived.index.memory_bytes_max == 512 * MIB - VALKEY
    assert needed(derived) <= 4 * GIB

    given = {**large, "config": {"index": {"memory_bytes_max": GIB}}}
    done = helm(given)
    assert done.returncode != 0
    assert "redis.bundled.resources.limits.memory is 512Mi" in done.stderr
    larger = {"redis": {"bundled": {"resources": {"limits": {"memory": "2Gi"}}}}}
    assert helm({**given, **larger}).returncode == 0
    assert helm({**given, **ELSEWHERE}).returncode == 0


@pytest.mark.parametrize("limit", ["2147483648", 2147483648, "2048Mi", "2Gi", "2e9", "2.147483648G"])
def test_a_quantity_of_memory_is_read_in_each_of_its_forms(limit: object, tmp_path: Path) -> None:
    values = {"gateway": {"resources": {"limits": {"memory": limit}}}, **ELSEWHERE}
    assert 1.9e9 < needed(settings_of(render(values), tmp_path)) <= 2 * GIB


@pytest.mark.parametrize("resources", [None, {"limits": None}])
def test_without_a_limit_the_gateway_has_its_own_defaults(
    resources: dict[str, None] | None, tmp_path: Path
) -> None:
    settings = settings_of(render({"gateway": {"resources": resources}}), tmp_path)
    assert settings.index == Settings().index
    assert settings.listen.memory_bytes_max == Settings().listen.memory_bytes_max


def test_the_arithmetic_is_that_of_the_planner_and_the_program() -> None:
    assert abs(PROCESS - MEASURED.process_bytes) < 0.05 * MEASURED.process_bytes
    assert MEASURED.redis_bytes_per_block <= 16
    assert ENCODING_THREADS == 2
    assert ModelSettings(name="m").tokenizer_memory_bytes_max == 64 * MIB
    assert Settings().telemetry.requests.kept_max == 500
