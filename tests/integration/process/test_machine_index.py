"""`radixgate serve --processes 4`: one process follows the index, and every process routes by it.

A process that still counts a request at a worker may rightly prefer another worker to it, and processes learn some
milliseconds late of each other's requests. So each request here is sent when no process counts another one.
"""

import asyncio
import json
import os
import re
import signal
import sys
from contextlib import AsyncExitStack
from pathlib import Path

import aiohttp
import pytest
import pytest_asyncio
import redis.asyncio as redis

from gateway.queueing.shared.keys import QueueKeys
from radix_cache.shared.keys import Keys
from tests.fakes.scripted_worker import ScriptedWorker
from tests.stage.ports import free_port
from tests.stage.processes import gateway_processes, has_ended

pytestmark = pytest.mark.asyncio(loop_scope="module")

PROCESSES = 4
PREFIX = "machine-index"
TEXT = "a system prompt that all requests share " * 240


class Machine:
    """The processes of one machine from outside."""

    def __init__(self, process, url, admin, workers, redis_url):
        self.process, self.url, self.admin, self.workers = process, url, admin, workers
        self._redis_url = redis_url
        command = Path(f"/proc/{self.pids()[1]}/cmdline").read_text().split("\0")
        self._directory = Path(command[command.index("--process-directory") + 1])

    async def send(self, text):
        """Send a request on a connection of its own, which the kernel gives to any process."""
        body = {"model": "m", "messages": [{"role": "user", "content": text}]}
        async with aiohttp.ClientSession() as http:
            async with http.post(f"{self.url}/v1/chat/completions", json=body) as answer:
                await answer.read()
                return answer.status

    async def ask(self, text):
        """Send a request and return its status, once no process counts it any more.

        The worker answers only when every process counts the request: before that, a process that counts none may
        have yet to learn of it.
        """
        answering = asyncio.Event()
        for worker in self.workers:
            worker.then(until=answering)
        asking = asyncio.create_task(self.send(text))

        async def counted():
            return asking.done() or all(await self.counts())

        await self.until(counted)
        answering.set()
        status = await asking
        await self.until(self.none_counted)
        return status

    async def none_counted(self):
        """Whether Redis has no placement of a request, and no process counts a request at a worker."""
        client = redis.Redis.from_url(self._redis_url)
        placements = await client.hlen(QueueKeys(PREFIX).of([])[2])
        await client.aclose()
        return not placements and not any(await self.counts())

    async def counts(self):
        """How many requests each process that lives counts at the workers, its own and those of others."""
        return [await self._count(number) for number in self.pids()]

    async def _count(self, number):
        """How many requests this process counts; the first one has a port for operators, the others a socket."""
        socket = aiohttp.UnixConnector(str(self._directory / f"admin-{number}")) if number else None
        url = "http://localhost" if number else self.admin
        async with (
            aiohttp.ClientSession(connector=socket) as http,
            http.get(f"{url}/admin/v1/workers") as answer,
        ):
            return sum(worker["streams"] for worker in (await answer.json())["data"])

    async def by_process(self, metric, labels=".*"):
        """The sum of a metric over all series with such labels, by process."""
        try:
            async with aiohttp.ClientSession() as http, http.get(f"{self.admin}/metrics") as answer:
                text = await answer.text()
        except aiohttp.ClientError:
            return {}  # The first process is away, which serves the metrics of all.
        found = {}
        pattern = rf'^radixgate_{metric}{{process="(\d)"{labels}}} (\S+)$'
        for process, value in re.findall(pattern, text, re.M):
            found[int(process)] = found.get(int(process), 0.0) + float(value)
        return found

    async def until(self, condition, seconds=60):
        async with asyncio.timeout(seconds):
            while not await condition():
                await asyncio.sleep(0.05)

    async def all_have(self, metric, wanted, labels=".*"):
        """Wait until a metric is as wanted at every process."""

        async def as_wanted():
            found = await self.by_process(metric, labels)
            return len(found) == PROCESSES and all(map(wanted, found.values()))

        await self.until(as_wanted)

    async def ask_every_process(self, text):
        """Send requests until each process has served one; return how many each worker has got."""
        before = await self.by_process("requests_total")
        sent = [len(worker.seen) for worker in self.workers]

        async def all_asked():
            for _ in range(4):
                assert await self.ask(text) == 200
            served = await self.by_process("requests_total")
            return all(served.get(each, 0) > before.get(each, 0) for each in range(PROCESSES))

        await self.until(all_asked)
        return [len(worker.seen) - count for worker, count in zip(self.workers, sent, strict=True)]

    def pids(self):
        """Process ids of the gateways, by number."""
        return gateway_processes(self.process.pid)


def segments_mapped(pid):
    """The shared memory of the index that a process has mapped, by name and inode."""
    with open(f"/proc/{pid}/maps") as maps:
        return {line.split()[4] for line in maps if "radixgate-index" in line}


def holder(counts):
    """The one worker that has got requests."""
    (found,) = [number for number, count in enumerate(counts) if count]
    return found


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def machine(tmp_path_factory, valkey):
    """A gateway of several processes for all tests, the last of which kills it."""
    async with AsyncExitStack() as stack:
        tmp_path = tmp_path_factory.mktemp("machine")
        admin = free_port()
        workers = [await stack.enter_async_context(ScriptedWorker()) for _ in range(2)]
        for worker in workers:
            worker.then(cached_tokens=None)
        settings = {
            "listen": {"port": 0, "processes": PROCESSES},
            "admin": {"port": admin},
            "redis": {"url": valkey.url, "prefix": PREFIX, "timeout_ms": 2000},
            "state_directory": str(tmp_path / "state"),
            "workers": [
                {"id": f"w{number}", "kind": "sglang", "url": worker.url}
                for number, worker in enumerate(workers)
            ],
            "drain": {"notice_seconds": 0, "seconds": 20},
            # Its rule has no time that a request takes beside its tokens: on a busy machine a slow answer would
            # teach one that outweighs a prefix.
            "routing": {"policy": "product"},
        }
        file = tmp_path / "gateway.yaml"
        file.write_text(json.dumps(settings))
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "gateway", "serve", "--config", str(file)),
            stdout=asyncio.subprocess.PIPE,
            stderr=(tmp_path / "log").open("wb"),
        )
        try:
            async with asyncio.timeout(120):
                said = (await process.stdout.readline()).decode()
            url = re.match(r"radixgate ready at (\S+)", said)[1]
            machine = Machine(process, url, f"http://127.0.0.1:{admin}", workers, valkey.url)

            await machine.all_have("worker_health", lambda up: up == 2, labels='.*state="up".*')
            await machine.all_have("index_up", bool)
            yield machine
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()


async def learnt(machine, text):
    """Send a request, wait until every process knows its prompt, and return the worker that has it."""
    before = [len(worker.seen) for worker in machine.workers]
    blocks = max((await machine.by_process("index_blocks")).values())
    assert await machine.ask(text) == 200
    await machine.all_have("index_blocks", lambda found: found > blocks)
    return holder(len(worker.seen) - count for worker, count in zip(machine.workers, before, strict=True))


async def test_a_prefix_is_routed_to_its_holder_by_every_process(machine, valkey):
    for number in range(3):
        text = f"{number} {TEXT}"
        first = await learnt(machine, text)
        assert holder(await machine.ask_every_process(text)) == first
    # One process follows the index, and has the only copy.
    client = redis.Redis.from_url(valkey.url)
    keys = Keys(prefix=PREFIX)
    counts = await client.execute_command("PUBSUB", "SHARDNUMSUB", *map(keys.tag, range(keys.shards)))
    assert set(counts[1::2]) == {1}
    await client.aclose()
    memory = await machine.by_process("index_memory_bytes")
    assert memory[0] > 0
    assert [memory[number] for number in range(1, PROCESSES)] == [0] * (PROCESSES - 1)


async def test_without_the_first_process_the_others_route_on_until_it_is_back(machine):
    first = await learnt(machine, TEXT)
    before = machine.pids()
    # A supervising process that is stopped does not start the first process again.
    machine.process.send_signal(signal.SIGSTOP)
    os.kill(before[0], signal.SIGKILL)

    async def is_gone():
        return has_ended(before[0])

    await machine.until(is_gone)
    sent = [len(worker.seen) for worker in machine.workers]
    for _ in range(12):
        # Without the first process no other one learns of the request.
        assert await machine.send(TEXT) == 200
        await machine.until(machine.none_counted)
    machine.process.send_signal(signal.SIGCONT)
    counts = [len(worker.seen) - count for worker, count in zip(machine.workers, sent, strict=True)]
    assert holder(counts) == first

    async def is_back():
        return machine.pids().get(0, before[0]) != before[0]

    await machine.until(is_back)
    await machine.all_have("index_up", bool)
    assert {number: pid for number, pid in machine.pids().items() if number} == {
        number: pid for number, pid in before.items() if number
    }
    assert holder(await machine.ask_every_process(TEXT)) == first
    other = f"another {TEXT}"
    holds_other = await learnt(machine, other)
    assert holder(await machine.ask_every_process(other)) == holds_other


async def test_the_memory_is_gone_when_the_supervising_process_is_killed(machine):
    pids = machine.pids()
    assert len(set.union(*(segments_mapped(pid) for pid in pids.values()))) == 2
    machine.process.kill()

    async def all_gone():
        return not set(os.listdir("/proc")) & set(map(str, pids.values()))

    await machine.until(all_gone)
