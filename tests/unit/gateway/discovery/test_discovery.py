"""Discovery: changes of the fleet by reports of sources, and by their silence."""

import logging

import msgspec
import pytest

from gateway.discovery import dns
from gateway.discovery.discovery import Discovery
from gateway.discovery.dns import DnsSource
from gateway.discovery.file import FileSource
from gateway.discovery.source import SourceUnavailable
from gateway.discovery.worker_kinds import WorkerKinds
from gateway.fleet.fleet import Fleet
from gateway.fleet.loads import LoadShare
from gateway.fleet.worker import Worker
from gateway.settings.types import Secret
from gateway.settings.workers import DiscoverySettings as Settings
from gateway.settings.workers import WorkerSettings, WorkerTlsSettings
from gateway.wiring.fleet import target_of
from radix_cache.match import WorkerId
from tests.fakes.clock import FakeClock
from tests.fakes.fleet_listener import NotingListener
from workers.worker import Health


class Told:
    """A source that says what it is told to say."""

    def __init__(self, *names, name="told"):
        self.name = name
        self.says = [settings(one) for one in names]

    async def find(self):
        if isinstance(self.says, Exception):
            raise self.says
        return self.says


class Adapter:
    closed = False

    def close(self):
        self.closed = True


def settings(name, url="http://10.0.0.1:8000"):
    return WorkerSettings(id=name, kind="vllm", url=url)


def made(one):
    return Worker(
        id=WorkerId(one.id), kind=one.kind, adapter=Adapter(), models=frozenset("m"), models_fixed=True
    )


@pytest.fixture
def gone():
    return []


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def discovered(gone, clock):
    """A discovery over some sources, with one worker of the settings, `s`."""

    def make(*sources):
        fleet, listener = Fleet([made(settings("s"))]), NotingListener()
        listener.gone = gone
        fleet.subscribe(listener)
        found = Discovery(
            fleet, [settings("s")], sources, None, made, WorkerKinds(target_of), drain_seconds=60, clock=clock
        )
        return found, fleet

    return make


def names(fleet):
    return sorted(worker.id for worker in fleet)


def busy(fleet, name):
    return LoadShare(fleet[WorkerId(name)].load, uncached_tokens=1, kv_tokens=1)


async def test_workers_that_are_found_join_and_those_that_vanish_leave(discovered, gone):
    source = Told("a", "b")
    discovery, fleet = discovered(source)
    await discovery.query_sources()
    assert names(fleet) == ["a", "b", "s"]
    leaving = fleet[WorkerId("a")]
    source.says = [settings("b")]
    await discovery.query_sources()
    assert names(fleet) == ["b", "s"]
    assert gone == ["a"]
    assert leaving.adapter.closed


async def test_one_that_leaves_keeps_its_streams_and_gets_no_new_ones(discovered, gone, caplog):
    caplog.set_level(logging.INFO)
    source = Told("a")
    discovery, fleet = discovered(source)
    await discovery.query_sources()
    stream = busy(fleet, "a")
    source.says = []
    await discovery.query_sources()
    assert fleet[WorkerId("a")].health.state is Health.DRAINING
    assert caplog.messages[-1] == "worker a: draining, was suspect: no source reports it any more"
    assert [worker.id for worker in fleet.serving("m")] == ["s"]
    stream.end()
    await discovery.query_sources()
    assert (names(fleet), gone) == (["s"], ["a"])


async def test_a_stream_that_never_ends_is_bounded_in_time(discovered, clock):
    source = Told("a")
    discovery, fleet = discovered(source)
    await discovery.query_sources()
    busy(fleet, "a")
    source.says = []
    await discovery.query_sources()
    clock.advance(61)
    await discovery.query_sources()
    assert names(fleet) == ["s"]


async def test_one_that_is_back_before_it_was_gone_goes_on(discovered):
    source = Told("a")
    discovery, fleet = discovered(source)
    await discovery.query_sources()
    busy(fleet, "a")
    source.says = []
    await discovery.query_sources()
    source.says = [settings("a")]
    await discovery.query_sources()
    assert fleet[WorkerId("a")].health.state is Health.SUSPECT


async def test_other_settings_are_another_worker(discovered, gone):
    source = Told("a")
    discovery, fleet = discovered(source)
    await discovery.query_sources()
    first = fleet[WorkerId("a")]
    source.says = [settings("a", "http://10.0.0.2:8000")]
    await discovery.query_sources()
    await discovery.query_sources()
    assert gone == ["a"]
    assert fleet[WorkerId("a")] is not first


async def test_a_source_that_is_away_removes_no_worker_and_is_logged_once(discovered, caplog):
    source = Told("a")
    discovery, fleet = discovered(source)
    await discovery.query_sources()
    source.says = SourceUnavailable("no such name")
    with caplog.at_level(logging.INFO):
        await discovery.query_sources()
        await discovery.query_sources()
    assert names(fleet) == ["a", "s"]
    assert discovery.unavailable_sources == {"told": "no such name"}
    assert [record.levelname for record in caplog.records] == ["WARNING"]


async def test_the_settings_word_counts_before_a_sources_and_the_first_sources_before_the_second(discovered):
    one, two = Told("a", "s", name="one"), Told("a", name="two")
    two.says = [settings("a", "http://10.0.0.9:1")]
    discovery, fleet = discovered(one, two)
    of_settings = fleet[WorkerId("s")]
    await discovery.query_sources()
    one.says = []
    await discovery.query_sources()
    assert fleet[WorkerId("s")] is of_settings


async def test_a_file_is_read_when_it_changes(tmp_path):
    file = tmp_path / "workers.yaml"
    source = FileSource(file, 1.0)
    with pytest.raises(SourceUnavailable, match="cannot be read"):
        await source.find()
    file.write_text("- {id: a, kind: vllm, url: 'http://a:1', api_key: sk-1}")
    assert [(w.id, w.api_key.reveal()) for w in await source.find()] == [("a", "sk-1")]
    file.write_text("- {id: b, kind: vllm, url: 'http://b:1'}\n")
    assert [worker.id for worker in await source.find()] == ["b"]


@pytest.mark.parametrize("text", ["", "\n", "# none yet\n"], ids=["nothing", "a line", "a comment"])
async def test_a_file_that_is_being_written_removes_no_worker(tmp_path, text):
    file = tmp_path / "workers.yaml"
    file.write_text("- {id: a, kind: vllm, url: 'http://a:1'}")
    source = FileSource(file, 1.0)
    assert len(await source.find()) == 1
    file.write_text(text)
    with pytest.raises(SourceUnavailable, match="the file is empty"):
        await source.find()
    file.write_text("[]")
    assert await source.find() == []


async def test_certificates_of_a_file_of_workers_begin_at_that_file(tmp_path):
    (tmp_path / "ca.pem").write_text("")
    file = tmp_path / "workers.yaml"
    file.write_text("- {id: a, kind: vllm, url: 'https://a:1', tls: {ca: ca.pem}}")
    assert [one.tls.ca for one in await FileSource(file, 1.0).find()] == [str(tmp_path / "ca.pem")]


async def test_a_file_refers_to_secrets_as_settings_do(tmp_path, monkeypatch):
    monkeypatch.setenv("GPU_KEY", "sk-environment")
    (tmp_path / "key").write_text("sk-file\n")
    file = tmp_path / "workers.yaml"
    worker = "- {{id: {}, kind: vllm, url: 'http://a:1', api_key: '{}'}}\n"
    file.write_text(worker.format("a", "${env:GPU_KEY}") + worker.format("b", "${file:key}"))
    found = await FileSource(file, 1.0).find()
    assert [one.api_key.reveal() for one in found] == ["sk-environment", "sk-file"]
    file.write_text(worker.format("a", "${env:NOT_SET}"))
    with pytest.raises(
        SourceUnavailable, match=r"\$\[0\]\.api_key: the environment variable NOT_SET is not set"
    ):
        await FileSource(file, 1.0).find()


@pytest.mark.parametrize(
    "text", ["{id: a}", "- {id: a}", "- {id: a, kind: vllm, url: sk-secret}", "[", "\x00"]
)
async def test_a_file_that_is_wrong_is_a_source_that_is_away_and_quotes_no_values(tmp_path, text):
    file = tmp_path / "workers.yaml"
    file.write_text(text)
    with pytest.raises(SourceUnavailable) as refusal:
        await FileSource(file, 1.0).find()
    assert "sk-secret" not in str(refusal.value)


@pytest.mark.parametrize(
    ("provider", "says"),
    [
        ("{models: {m: {}}, limits: [{requests: 1, until: 2030-01-01}]}", "moment cannot be given here"),
        ("{models: {m: {}}, limits: [{per: minute}]}", "a limit names one of"),
        ("{models: {}}", "expected a mapping of at least 1 entry"),
    ],
    ids=["an end", "no unit", "no models"],
)
async def test_a_provider_in_a_file_that_is_wrong_is_refused_with_its_place(tmp_path, provider, says):
    file = tmp_path / "workers.yaml"
    file.write_text(f"- {{id: a, kind: openai, url: 'http://a:1', provider: {provider}}}")
    with pytest.raises(SourceUnavailable) as refusal:
        await FileSource(file, 1.0).find()
    assert says in str(refusal.value)
    assert "$[0].provider" in str(refusal.value)


@pytest.mark.parametrize("name", ["sglang..internal", f"{'a' * 64}.internal"], ids=["empty", "long"])
async def test_a_name_that_cannot_be_resolved_is_a_source_that_is_away(name):
    with pytest.raises(SourceUnavailable, match="cannot be resolved"):
        await DnsSource(Settings(kind="dns", name=name)).find()


async def test_a_resolver_that_does_not_answer_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(dns, "ANSWER_SECONDS_MAX", 0.0)
    with pytest.raises(SourceUnavailable, match="not resolved within 0 seconds"):
        await DnsSource(Settings(kind="dns", name="localhost")).find()


async def test_every_address_of_a_name_is_a_worker():
    source = DnsSource(Settings(kind="dns", name="localhost", port=8123, models=("m",)))
    found = await source.find()
    assert "http://127.0.0.1:8123" in [worker.url for worker in found]
    assert all(worker.models == ("m",) for worker in found)
    assert len({worker.id for worker in found}) == len(found)
    with pytest.raises(SourceUnavailable, match="cannot be resolved"):
        await DnsSource(Settings(kind="dns", name="nowhere.invalid")).find()


def test_a_workers_id_is_one_that_settings_allow():
    for address, name in (("10.0.0.1", None), ("fd00::1", None), ("10.0.0.1", "x" * 200)):
        one = Settings(kind="dns", name="workers.example.com").worker(address, 8000, name=name)
        assert msgspec.convert(msgspec.to_builtins(one.id), WorkerSettings.__annotations__["id"]) == one.id


async def test_workers_behind_a_name_are_reached_by_tls_and_with_headers_where_that_is_set():
    told = Settings(kind="dns", name="localhost", tls=WorkerTlsSettings(), headers={"x-a": Secret("b")})
    (first, *_) = await DnsSource(told).find()
    assert first.url.startswith("https://")
    assert first.headers == {"x-a": Secret("b")}


async def test_a_worker_whose_certificates_cannot_be_read_joins_once_they_can(clock, caplog):
    source, readable = Told("a"), []

    def make(one):
        if not readable:
            raise FileNotFoundError("no such file: ca.pem")
        return made(one)

    fleet = Fleet([])
    discovery = Discovery(
        fleet, [], [source], None, make, WorkerKinds(target_of), drain_seconds=60, clock=clock
    )
    await discovery.query_sources()
    await discovery.query_sources()
    assert names(fleet) == []
    assert sum("cannot join" in record.getMessage() for record in caplog.records) == 1
    readable.append(True)
    await discovery.query_sources()
    assert names(fleet) == ["a"]
