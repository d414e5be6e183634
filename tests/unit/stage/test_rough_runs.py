"""What chaos and soak judge by, and the link between gateways and Valkey: a judge that cannot say no is none."""

import asyncio
import random

import pytest

from tests.chaos.__main__ import more_than, tracebacks
from tests.chaos.faults import FAULTS, Fault, nothing
from tests.chaos.load import Tally
from tests.chaos.promises import Then, charges, seen_by_clients
from tests.chaos.scene import AMOUNTS
from tests.soak.samples import WARM_REQUESTS, Sample, verdict
from tests.soak.streams import Round, growth
from tests.stage.link import Link

MIB = 1024**2


def samples(leak, requests=300_000, base=150 * MIB, count=60):
    """Memory that fills up while it may and then rises, so many bytes a request, with noise."""
    noise = random.Random(7)
    found = []
    for at in range(count + 1):
        done = requests * at // count
        filled = min(1.0, done / WARM_REQUESTS) * 60 * MIB
        memory = int(base + filled + leak * done + noise.uniform(-3, 3) * MIB)
        rest = dict.fromkeys(("descriptors", "tasks", "leases", "nodes", "blocks", "pages"), 0)
        found.append(Sample(requests=done, seconds=float(at), memory={"gateway": memory}, **rest))
    return found


@pytest.mark.parametrize(("leak", "flat"), [(0, True), (-50, True), (100, False), (1000, False)])
def test_memory_is_flat_unless_it_rises_after_caches_are_full(leak, flat):
    assert verdict("gateway", samples(leak)).flat is flat


def test_ten_bytes_a_request_show_in_a_million():
    assert not verdict("gateway", samples(10, requests=1_000_000)).flat


def test_a_verdict_on_a_few_samples_is_refused():
    with pytest.raises(ValueError, match="too few"):
        verdict("gateway", samples(0, count=4))


def rounds(leak, count=10):
    """Memory after rounds of streams: two fill the allocator, and each leaks so many bytes."""
    noise = random.Random(7)
    levels = [
        int((150 + min(at, 2) * 10 + noise.uniform(-1, 1)) * MIB + at * leak) for at in range(1, count + 1)
    ]
    return [Round(open_max=2000, memory_open={"g": each}, memory_after={"g": each}) for each in levels]


@pytest.mark.parametrize(("leak", "flat"), [(0, True), (-MIB, True), (2 * MIB, False)])
def test_memory_after_rounds_of_streams_stays_at_one_level(leak, flat):
    risen, allowed = growth(rounds(leak), "g")
    assert (risen <= allowed) is flat


def test_a_verdict_on_a_few_rounds_is_refused():
    with pytest.raises(ValueError, match="too few"):
        growth(rounds(0, count=3), "g")


CALM = Fault(name="x", inject=nothing, heal=nothing)
CUTTING = Fault(name="x", inject=nothing, heal=nothing, cuts=True)
KILLING = Fault(name="x", inject=nothing, heal=nothing, kills_gateway=True)
FORGETTING = Fault(name="x", inject=nothing, heal=nothing, forgets_quotas=True)


def charged(requests, tokens):
    return dict(zip(AMOUNTS, (requests, tokens), strict=True))


@pytest.mark.parametrize(
    ("fault", "requests", "tokens", "kept"),
    [
        (CALM, 10, 500, True),
        (CALM, 9, 500, False),
        (CALM, 11, 500, False),
        (CALM, 10, 499, False),
        (CALM, 10, 501, False),
        (CUTTING, 12, 540, True),
        (CUTTING, 13, 540, False),
        (KILLING, 13, 900, True),
        (KILLING, 16, 900, False),
        (KILLING, 13, 400, False),
        (FORGETTING, 6, 100, True),
        (FORGETTING, 3, 100, True),
        (FORGETTING, 2, 100, False),
        (FORGETTING, 7, 100, False),
    ],
)
def test_charges_are_what_clients_were_answered(fault, requests, tokens, kept):
    tally = Tally(requests=10, answered=10, tokens=500)
    tally.cut = 2 if fault is CUTTING else 0
    tally.retried, tally.excused = (3, 2) if fault is KILLING else (0, 0)
    wrong = charges(fault, tally, charged(0, 0), charged(requests, tokens), Then(answered=4, under_way=3))
    assert (not wrong) is kept, wrong


@pytest.mark.parametrize(
    ("changes", "kept"),
    [
        ({}, True),
        ({"failed": ["503"]}, False),
        ({"silent": ["no frame"]}, False),
        ({"cut": 1}, False),
        ({"retried": 1}, False),
        ({"excused": 1}, False),
        ({"answered": 0}, False),
    ],
)
def test_clients_may_see_of_a_fault_what_it_allows_and_no_more(changes, kept):
    assert (not seen_by_clients(CALM, Tally(**{"answered": 5, **changes}))) is kept


def test_a_killed_gateway_excuses_what_it_took_with_it_and_a_failed_worker_what_it_had_begun():
    assert not seen_by_clients(KILLING, Tally(answered=5, retried=1, excused=1))
    assert not seen_by_clients(CUTTING, Tally(answered=5, cut=1))
    assert seen_by_clients(KILLING, Tally(answered=5, cut=1))


def test_faults_have_names_of_their_own():
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)


def test_every_traceback_in_a_log_is_found():
    log = "INFO a\nTraceback (most recent call last):\n  File x\n    y\nKeyError: 'z'\nINFO b\n"
    assert tracebacks(log) == ["KeyError: 'z'"]
    assert tracebacks("INFO a\n") == []


def test_a_gateway_that_starts_again_counts_from_nothing():
    assert more_than({"one": 5, "two": 7}, {"one": 8, "two": 2}) == 3 + 2


@pytest.fixture
async def link(tmp_path):
    """To a server that sends back what it gets."""

    async def echo(reader, writer):
        while data := await reader.read(65536):
            writer.write(data)
        writer.close()

    server = await asyncio.start_unix_server(echo, tmp_path / "far")
    made = Link(tmp_path / "near", tmp_path / "far")
    await made.open()
    yield made
    await made.close()
    server.close()


async def connected(link):
    return await asyncio.open_unix_connection(link._near)


async def test_what_passes_a_link_stays_in_order_when_it_becomes_fast(link):
    reader, writer = await connected(link)
    link.delay_seconds = 0.05
    writer.write(b"first ")
    await asyncio.sleep(0.02)
    link.delay_seconds = 0.0
    writer.write(b"second")
    assert await asyncio.wait_for(reader.readexactly(12), 60) == b"first second"
    writer.close()


async def test_a_link_that_is_cut_ends_connections_and_takes_new_ones_unless_it_is_down(link):
    reader, writer = await connected(link)
    writer.write(b"x")
    assert await reader.readexactly(1) == b"x"
    link.cut()
    assert await asyncio.wait_for(reader.read(), 60) == b""
    again, other = await connected(link)
    other.write(b"y")
    assert await asyncio.wait_for(again.readexactly(1), 60) == b"y"
    link.up = False
    refused, third = await connected(link)
    assert await asyncio.wait_for(refused.read(), 60) == b""
    for each in (writer, other, third):
        each.close()
