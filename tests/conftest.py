"""Fixtures of many tests: a real Valkey, PostgreSQL and S3 server, and gateways on the production runner."""

import asyncio
import gc
import inspect
import json
import secrets
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import wraps
from itertools import zip_longest
from pathlib import Path
from typing import Any

import aiohttp
import asyncpg
import hypothesis  # its plugin would load it in the summary, where CPython 3.11 may fail to parse it
import pytest
import uvloop

from gateway.database import schema
from gateway.database.database import Database
from gateway.domain.request import GENERATING_SURFACES
from gateway.queueing.shared import membership
from gateway.runtime.server import serving
from gateway.runtime.serving_gateway import ServingGateway
from gateway.settings.database_address import sqlite_file
from gateway.settings.sources import load_settings
from gateway.settings.tree import Settings
from gateway.tenants.keys import NewKey, new_key, pepper
from tests.fakes.redis_cluster import ClusterStock, RedisCluster
from tests.fakes.scripted_worker import ScriptedWorker
from tests.stage.file_scheduling import FileScheduling
from tests.stage.postgres import PostgresMissing, PostgresServer
from tests.stage.s3 import S3Missing, S3Server
from tests.stage.valkey import ValkeyServer

SECRET = "a secret of the tests"
REQUEST_SECONDS_MAX = 90.0
NODE_TIMEOUT_MS = 15_000
WAITING = Path(__file__).parent / "integration"
"""The tests that wait for processes most of the time."""
WAITING_PART = 0.85
"""The part of a run in which they are begun."""

# No deadlines: how long a busy machine takes to draw an example says nothing about the example. Derandomized: a
# commit passes or fails by its content, not by the examples of the day. `make explore` draws new examples.
hypothesis.settings.register_profile(
    "any machine",
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
    derandomize=True,
)
hypothesis.settings.register_profile(
    "explore",
    parent=hypothesis.settings.get_profile("any machine"),
    derandomize=False,
    max_examples=1000,
    print_blob=True,
)
hypothesis.settings.load_profile("any machine")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> FileScheduling | None:
    """Distribute whole files over the processes in a way that outlives one of them."""
    return FileScheduling(config, log) if config.getvalue("dist") == "loadfile" else None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[Any]:
    """Exempt the collected tests and their modules from garbage collection, as a gateway does with its settings.

    They are a million objects that stay: each full collection would take most of a second to look at them, also
    one here.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(20_000, 20, 50)
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mix files of tests that wait for processes with files of tests that compute: the cores stay busy throughout.

    Several processes of pytest take the files in this order. The last ones compute: a file that waits, taken up at
    the end, would be waited for by idle cores.
    """
    files = list(dict.fromkeys(item.path for item in items))
    waiting = [file for file in files if WAITING in file.parents]
    computing = [file for file in files if WAITING not in file.parents]
    places = {file: WAITING_PART * (at + 0.5) / len(waiting) for at, file in enumerate(waiting)}
    places |= {file: (at + 0.5) / len(computing) for at, file in enumerate(computing)}
    items.sort(key=lambda item: places[item.path])


def pytest_itemcollected(item: pytest.Item) -> None:
    """Bound each coroutine test by itself, a little below the general timeout: uvloop lets no alarm through."""
    if isinstance(item, pytest.Function) and inspect.iscoroutinefunction(item.obj):
        seconds = seconds_max(item)
        if seconds:
            item.obj = _bounded(item.obj, 0.9 * seconds)


def seconds_max(item: pytest.Item) -> float:
    """Return the seconds that a test may take, by the rules of pytest-timeout; 0: without a bound."""
    marker = item.get_closest_marker("timeout")
    marked = (*marker.args, marker.kwargs.get("timeout"))[0] if marker is not None else None
    told = (marked, item.config.getoption("timeout"), item.config.getini("timeout"))
    return float(next((seconds for seconds in told if seconds is not None), 0) or 0)


def _bounded(test: Callable[..., Coroutine[Any, Any, None]], seconds: float) -> Callable[..., Any]:
    @wraps(test)
    async def bounded(*args: Any, **named: Any) -> None:
        async with asyncio.timeout(seconds):
            await test(*args, **named)

    return bounded


def pytest_asyncio_loop_factories(item: pytest.Item) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Run tests on uvloop, as gateways do, and those marked `any_loop` on asyncio's own event loop too."""
    uv = {"uvloop": uvloop.new_event_loop}
    return uv if item.get_closest_marker("any_loop") is None else {**uv, "asyncio": asyncio.new_event_loop}


@pytest.fixture(scope="session")
def valkey() -> Iterator[ValkeyServer]:
    """A Valkey for all tests; each test uses key names of its own."""
    directory = Path(tempfile.mkdtemp(prefix="radixgate-test-"))
    server = ValkeyServer(directory)
    server.start()
    yield server
    server.kill()
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A PostgreSQL for all tests; each test uses a database of its own. Skipped where it cannot be installed."""
    directory = Path(tempfile.mkdtemp(prefix="radixgate-test-"))
    try:
        server = PostgresServer(directory)
        server.prepare()
        server.start()
    except PostgresMissing as err:
        pytest.skip(str(err))
    yield server
    server.stop()
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture
def own_postgres(postgres: PostgresServer) -> Iterator[PostgresServer]:
    """A PostgreSQL for one test, which may stop it."""
    directory = Path(tempfile.mkdtemp(prefix="radixgate-test-"))
    server = PostgresServer(directory)
    server.prepare()
    server.start()
    yield server
    server.stop()
    shutil.rmtree(directory, ignore_errors=True)


def in_thread(action: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine in a thread of its own: the test may run in an event loop already."""
    with ThreadPoolExecutor(1) as thread:
        thread.submit(asyncio.run, action).result()


async def upgraded(url: str) -> None:
    """Make the newest tables in an empty database."""
    database = Database(url, Path())
    await schema.upgrade(database)
    await database.close()


def new_database(postgres: PostgresServer, template: str = "template1") -> str:
    """Make a database with all that the template has, and return its name."""
    name = f"test_{secrets.token_hex(8)}"

    async def create() -> None:
        connection = await asyncpg.connect(postgres.url())
        await connection.execute(f"CREATE DATABASE {name} TEMPLATE {template}")
        await connection.close()

    in_thread(create())
    return name


@pytest.fixture
def postgres_url(postgres: PostgresServer) -> str:
    """An empty database."""
    return postgres.url(new_database(postgres))


@pytest.fixture(scope="session")
def postgres_template(postgres: PostgresServer) -> str:
    """The name of a database with the newest tables, for databases that begin as its copies."""
    name = new_database(postgres)
    in_thread(upgraded(postgres.url(name)))
    return name


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SQLite file with the newest tables, for databases that begin as its copies."""
    file = tmp_path_factory.mktemp("tables") / "tables.db"
    in_thread(upgraded(f"sqlite:///{file}"))
    return file


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """An S3 server for all tests; each test uses a bucket of its own. Skipped where moto is not installed."""
    try:
        server = S3Server(tmp_path_factory.mktemp("s3") / "log")
    except S3Missing as err:
        pytest.skip(str(err))
    server.start()
    yield server
    server.stop()


@pytest.fixture(params=["sqlite", "postgres"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty database of each kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/tenants.db"
    url: str = request.getfixturevalue("postgres_url")
    return url


@pytest.fixture
def postgres_tables_url(postgres: PostgresServer, postgres_template: str) -> str:
    """A PostgreSQL database with the newest tables, which are empty."""
    return postgres.url(new_database(postgres, postgres_template))


@pytest.fixture
def sqlite_tables_url(sqlite_template: Path, tmp_path: Path) -> str:
    """A SQLite database with the newest tables, which are empty."""
    shutil.copy(sqlite_template, tmp_path / "tenants.db")
    return f"sqlite:///{tmp_path}/tenants.db"


@pytest.fixture(params=["sqlite", "postgres"])
def tables_url(request: pytest.FixtureRequest) -> str:
    """A database of each kind with the newest tables, for tests that are not about how tables are made."""
    return str(request.getfixturevalue(f"{request.param}_tables_url"))


@pytest.fixture
def own_valkey() -> Iterator[ValkeyServer]:
    """A Valkey for one test, which may kill it."""
    directory = Path(tempfile.mkdtemp(prefix="radixgate-test-"))
    server = ValkeyServer(directory)
    server.start()
    yield server
    server.kill()
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture(scope="session")
def cluster() -> Iterator[RedisCluster]:
    """A cluster for all tests that only read and write; each test uses key names of its own."""
    servers = RedisCluster(node_timeout_ms=NODE_TIMEOUT_MS)
    try:
        servers.start()
        yield servers
    finally:
        servers.close()


@pytest.fixture(scope="session")
def cluster_stock() -> Iterator[ClusterStock]:
    """The clusters of tests that need one of their own."""
    stock = ClusterStock(node_timeout_ms=NODE_TIMEOUT_MS)
    yield stock
    stock.close()


@pytest.fixture
def own_cluster(request: pytest.FixtureRequest, cluster_stock: ClusterStock) -> Iterator[RedisCluster]:
    """A cluster for one test, which may move its slots and kill its servers.

    The fixture's parameter, if any, is the cluster's node timeout in milliseconds.
    """
    servers = cluster_stock.take()
    try:
        if (milliseconds := getattr(request, "param", NODE_TIMEOUT_MS)) != NODE_TIMEOUT_MS:
            servers.set_node_timeout(milliseconds)
        yield servers
    finally:
        servers.close()


@pytest.fixture(params=["one server", "cluster"])
def redis_url(request: pytest.FixtureRequest) -> str:
    """The URL of one server, and of a cluster: for tests that hold on both."""
    servers = request.getfixturevalue("valkey" if request.param == "one server" else "cluster")
    return str(servers.url)


def _give_tables(settings: Settings, template: Path) -> None:
    """Let a new SQLite file begin as a copy of the template: making its tables takes longer than most tests."""
    file = sqlite_file(settings.database.url, Path(settings.state_directory))
    if file is not None and not file.exists():
        shutil.copy(template, file)


class RunningGateway:
    """A serving gateway with a key for each tenant and an HTTP client."""

    def __init__(self, here: ServingGateway, http: aiohttp.ClientSession, keys: dict[str, NewKey]) -> None:
        self.here = here
        self.http = http
        self.keys = keys

    @property
    def url(self) -> str:
        """The URL of the tenants' listener."""
        return self.here.tenant_url

    @property
    def admin(self) -> str:
        """The URL of the operators' listener."""
        return self.here.admin_url

    def headers(self, tenant: str = "acme") -> dict[str, str]:
        """Return the headers that authenticate the tenant."""
        return {"Authorization": f"Bearer {self.keys[tenant].text}"}

    def chat(self, text: str = "hello", *, tenant: str = "acme", **more: Any) -> Any:
        """Send a chat completion: `async with running.chat() as response`."""
        body = {"model": "m", "messages": [{"role": "user", "content": text}], **more}
        return self.http.post(f"{self.url}/v1/chat/completions", json=body, headers=self.headers(tenant))

    def knows_shapes(self) -> None:
        """Teach the gateway the shape of whole answers: it asks workers for streams from now on."""
        for worker in self.here.gateway.fleet:
            for surface in GENERATING_SURFACES:
                worker.response_shapes.learn(surface, b'{"choices":[{"index":0,"message":{}}]}')

    async def until(self, true: Callable[[], object], seconds: float = 60.0) -> float:
        """Wait until the condition holds, and return the seconds that it took."""
        started = time.monotonic()
        while not true():
            assert time.monotonic() - started < seconds, "it does not become true"
            await asyncio.sleep(0.002)
        return time.monotonic() - started

    async def settled(self) -> None:
        """Wait until nothing is held, and every lease that has ended is settled in Redis."""
        leases, scripts = (
            self.here.gateway.services.dispatch.reservations.leases,
            self.here.gateway.index.scripts,
        )
        await self.until(lambda: self.idle and not leases._endings and not scripts.busy)

    @property
    def idle(self) -> bool:
        """Whether no request holds anything: no quota, no placement, no turn."""
        at = self.here.gateway.services.dispatch
        loads = [worker.load for worker in at.fleet]
        return (
            len(at.reservations.leases) == 0
            and all(load.streams == load.tokens_queued == load.kv_tokens == 0 for load in loads)
            and all(len(room) == 0 for room in at.rooms.all().values())
        )


NewGateway = Callable[..., AbstractAsyncContextManager[RunningGateway]]


@pytest.fixture
def long_leases(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gateways of one process that do not take each other for dead: a busy machine may stop it for seconds."""
    monkeypatch.setattr(membership, "LEASE_MS", 60_000)


@pytest.fixture
def gateway(tmp_path: Path, valkey: ValkeyServer, sqlite_template: Path, long_leases: None) -> NewGateway:
    """Return a function that makes gateways: `async with gateway(worker, limits=...) as running`.

    Each gateway has two tenants, `acme` and `globex`, on one plan with the given limits; with `tenants={}` it is
    open to all. The entry `key` of a tenant is merged into the tenant's API key. Further settings are given by
    their paths: `**{"routing.policy": ...}`. The function waits until all workers are up, or any. The Valkey is
    real, and the gateway runs on the production runner.
    """

    @asynccontextmanager
    async def start(
        *workers: ScriptedWorker,
        limits: list[dict[str, Any]] | None = None,
        concurrency: int | None = None,
        plan: dict[str, Any] | None = None,
        tenants: dict[str, dict[str, Any]] | None = None,
        kind: str = "sglang",
        roles: Sequence[str] = (),
        all_up: bool = True,
        **settings: Any,
    ) -> AsyncIterator[RunningGateway]:
        named = {"acme": {}, "globex": {}} if tenants is None else tenants
        keys = {tenant: new_key(pepper(SECRET.encode())) for tenant in named}
        # One Valkey serves all tests: names of its own keep each apart.
        unique = f"{tmp_path.parent.name}-{tmp_path.name}"[-50:].replace("_", "-")
        tree = {
            "listen.port": "0",
            "admin.port": "0",
            "redis.url": valkey.url,
            "redis.timeout_ms": "2000",
            "redis.prefix": unique,
            # Tables are made for a test that is about them; for all others they would only take time.
            "database.url": "none",
            "state_directory": str(tmp_path),
            "deployment_secret": SECRET,
            "drain.notice_seconds": "0",
            "drain.seconds": "1",
            "workers": json.dumps(
                [
                    {"id": f"w{at}", "kind": kind, "url": w.url, "role": role}
                    for at, (w, role) in enumerate(zip_longest(workers, roles, fillvalue="both"))
                ]
            ),
            "plans": json.dumps(
                [{"name": "plan", "limits": limits or [], "concurrency": concurrency, **(plan or {})}]
            ),
            "tenants": json.dumps(
                [
                    {
                        "id": tenant,
                        "organisation": f"t{unique}-{tenant}",
                        "plan": "plan",
                        "keys": [{"id": keys[tenant].id, "hash": keys[tenant].hash, **more.get("key", {})}],
                        **{name: value for name, value in more.items() if name != "key"},
                    }
                    for tenant, more in named.items()
                ]
            ),
            **{name: str(value) if not isinstance(value, str) else value for name, value in settings.items()},
        }
        loaded = load_settings(None, {}, [f"{name}={value}" for name, value in tree.items()])
        _give_tables(loaded.settings, sqlite_template)
        # Less than the bound of a test: a request that hangs says which it is.
        patience = aiohttp.ClientTimeout(total=REQUEST_SECONDS_MAX)
        async with serving(loaded) as here, aiohttp.ClientSession(timeout=patience) as http:
            running = RunningGateway(here, http, keys)
            enough = all if all_up else any
            await running.until(lambda: enough(w.health.state.value == "up" for w in here.gateway.fleet))
            yield running

    return start
