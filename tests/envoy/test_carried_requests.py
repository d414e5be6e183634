"""A real Envoy carries the requests, and everything that the gateway promises of a request holds all the same."""

import asyncio
import json

import pytest

from tests.fakes.scripted_worker import ScriptedWorker


async def test_a_whole_answer_is_carried_by_envoy_and_settled(carried, records):
    async with ScriptedWorker() as worker, carried(worker) as at:
        async with at.chat() as response:
            body = await response.json()
            assert response.status == 200, body
        assert body["choices"][0]["message"]["content"]
        await at.gateway.settled()
        (record,) = records
        assert record.code == "ok"
        assert record.worker == "w0"
