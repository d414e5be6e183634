"""Connections to workers: HTTP cut anywhere, connections that die, and when a connection is used again."""

import asyncio
import random

import pytest

from workers.adapters import connection_pool
from workers.adapters.connection import ConnectionBroken, ConnectionTimedOut
from workers.adapters.connection_pool import ConnectionPool

pytestmark = pytest.mark.any_loop

REQUEST = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nhi"
SIZED = b"HTTP/1.1 200 OK\r\nContent-Type: application/json; charset=utf-8\r\nContent-Length: 11\r\n\r\nhello world"
CHUNKED = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"6\r\nhello \r\n5\r\nworld\r\n0\r\n\r\n"
)
ENDLESS = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\nhello world"


class Peer:
    """A server that answers every request with what `answer` writes; it counts connections and requests."""

    def __init__(self, answer):
        self.answer, self.connections, self.requests, self.writers = answer, 0, 0, []

    async def __aenter__(self):
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.pool = ConnectionPool(f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/base")
        return self

    async def __aexit__(self, *_):
        self.pool.close()
        for writer in self.writers:
            writer.transport.abort()
        self._server.close()
        await self._server.wait_closed()

    async def _serve(self, reader, writer):
        self.connections += 1
        self.writers.append(writer)
        try:
            while True:
                await reader.readexactly(len(REQUEST))
                self.requests += 1
                await self.answer(writer)
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass

    async def ask(self, seconds=5.0):
        connection, body = await self.pool.send((REQUEST,), seconds)
        try:
            while piece := await connection.read():
                body += piece
            return connection.status, connection.content_type, body
        finally:
            connection.release()


def says(*parts, close=False, pause=0.0):
    async def answer(writer):
        for part in parts:
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(pause)
        if close:
            writer.close()

    return answer


@pytest.mark.parametrize(("text", "kind"), [(SIZED, "application/json"), (CHUNKED, "text/event-stream")])
async def test_an_answer_may_come_in_any_pieces(text, kind):
    chance = random.Random(7)
    for _ in range(25):
        cuts = sorted(chance.sample(range(1, len(text)), chance.randint(0, 12)))
        parts = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
        async with Peer(says(*parts, pause=0.0005)) as peer:
            assert await peer.ask() == (200, kind, b"hello world")


async def test_an_answer_without_a_length_ends_with_its_connection():
    async with Peer(says(ENDLESS, close=True)) as peer:
        assert await peer.ask() == (200, "text/plain", b"hello world")
        assert await peer.ask() == (200, "text/plain", b"hello world")
        assert peer.connections == 2


async def test_an_answer_without_a_length_that_was_given_up_is_not_complete():
    async with Peer(says(ENDLESS)) as peer:
        connection, _ = await peer.pool.send((REQUEST,), 5.0)
        reading = asyncio.create_task(connection.read())
        await asyncio.sleep(0)
        connection.fail(ConnectionTimedOut("silent for too long"))
        with pytest.raises(ConnectionTimedOut):
            await asyncio.wait_for(reading, 60)


async def test_a_connection_is_used_again():
    async with Peer(says(SIZED)) as peer:
        for _ in range(5):
            await peer.ask()
        assert (peer.connections, peer.requests) == (1, 5)


async def test_as_many_connections_as_requests_at_once():
    async with Peer(says(SIZED, pause=0.01)) as peer:
        await asyncio.gather(*(peer.ask() for _ in range(8)))
        await asyncio.gather(*(peer.ask() for _ in range(8)))
        assert peer.connections == 8


async def test_a_connection_is_closed_where_its_worker_requires_it():
    closing = SIZED.replace(b"200 OK\r\n", b"200 OK\r\nConnection: close\r\n")
    async with Peer(says(closing)) as peer:
        await peer.ask()
        await peer.ask()
        assert peer.connections == 2


async def test_an_interim_answer_is_not_the_answer():
    async with Peer(says(b"HTTP/1.1 100 Continue\r\n\r\n", SIZED, pause=0.01)) as peer:
        assert (await peer.ask())[0] == 200
        assert (await peer.ask())[2] == b"hello world"


async def test_a_connection_that_died_in_the_pool_costs_no_request():
    async with Peer(says(SIZED)) as peer:
        await peer.ask()
        peer.writers[0].transport.abort()
        assert (await peer.ask())[0] == 200
        assert peer.connections == 2


async def test_a_connection_that_dies_as_a_request_arrives_costs_none_either():
    answers = iter([says(SIZED), says(close=True), says(SIZED)])

    async def answer(writer):
        await next(answers)(writer)

    async with Peer(answer) as peer:
        await peer.ask()
        assert (await peer.ask())[0] == 200
        assert (peer.connections, peer.requests) == (2, 3)


async def test_one_request_is_never_sent_more_than_twice():
    answer = says(SIZED, pause=0.01)

    async def current(writer):
        await answer(writer)

    async with Peer(current) as peer:
        await asyncio.gather(*(peer.ask() for _ in range(8)))
        asked, answer = peer.requests, says(close=True)
        with pytest.raises(ConnectionBroken):
            await peer.ask()
        assert peer.requests - asked == 2


async def test_a_fresh_connection_that_breaks_is_not_tried_again():
    async with Peer(says(close=True)) as peer:
        with pytest.raises(ConnectionBroken):
            await peer.ask()
        assert peer.requests == 1


async def test_an_answer_that_has_begun_is_not_requested_again():
    answers = iter([says(SIZED), says(SIZED[:30], close=True)])

    async def answer(writer):
        await next(answers)(writer)

    async with Peer(answer) as peer:
        await peer.ask()
        with pytest.raises(ConnectionBroken):
            await peer.ask()
        assert peer.requests == 2


@pytest.mark.parametrize(
    "text",
    [
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nabc",
        b"HTTP/1.1 200 OK\r\n" + b"".join(b"a%d: b\r\n" % number for number in range(200)) + b"\r\n",
        SIZED.replace(b"\r\n\r\n", b"".join(b"\r\na%d: b" % number for number in range(200)) + b"\r\n\r\n"),
        CHUNKED[:-5],
        SIZED[:-3],
    ],
)
async def test_what_is_not_a_whole_http_answer_is_broken(text):
    async with Peer(says(text, close=True)) as peer:
        with pytest.raises(ConnectionBroken):
            await peer.ask()


HEAD, TRAILED = CHUNKED.partition(b"6\r\n")[0], CHUNKED.removesuffix(b"\r\n")


@pytest.mark.parametrize(
    ("beginning", "rest"),
    [
        (b"HTTP/1.1 200 ", b"x" * 1000),
        (HEAD.removesuffix(b"\r\n") + b"a: ", b"x" * 1000),
        (HEAD.removesuffix(b"\r\n"), b"a: b\r\n" * 100),
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 50),
        (HEAD + b"1;", b"x" * 1000),
        (TRAILED + b"a: ", b"x" * 1000),
        (TRAILED, b"a: b\r\n" * 100),
    ],
    ids=[
        "a status line",
        "a value",
        "headers",
        "interim answers",
        "a chunk's extension",
        "a trailer's value",
        "trailers",
    ],
)
async def test_what_is_no_body_and_has_no_end_is_not_waited_for(beginning, rest):
    async def flood(writer):
        writer.write(beginning)
        while True:
            writer.write(rest)
            await writer.drain()
            await asyncio.sleep(0)

    async with Peer(flood) as peer:
        with pytest.raises(ConnectionBroken) as broken:
            await asyncio.wait_for(peer.ask(seconds=50.0), 60)
    assert not isinstance(broken.value, ConnectionTimedOut)


async def test_a_worker_that_requires_another_protocol_is_broken(caplog):
    switch = b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\nabc"
    async with Peer(says(switch)) as peer:
        with pytest.raises(ConnectionBroken, match="another protocol"):
            await peer.ask()
        assert not caplog.records


async def test_a_host_name_that_cannot_be_one_is_broken():
    with pytest.raises(ConnectionBroken, match="cannot connect"):
        await ConnectionPool("http://a..b:1").send((REQUEST,), 1.0)


async def test_an_offer_of_another_protocol_is_declined():
    offer = SIZED.replace(b"200 OK\r\n", b"200 OK\r\nConnection: upgrade\r\nUpgrade: h2c\r\n")
    async with Peer(says(offer)) as peer:
        assert await peer.ask() == await peer.ask() == (200, "application/json", b"hello world")


async def test_bytes_after_an_answer_spoil_the_connection():
    async with Peer(says(SIZED + b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil")) as peer:
        assert (await peer.ask())[2] == b"hello world"
        assert (await peer.ask())[2] == b"hello world"
        assert peer.connections == 2


async def test_silence_before_the_first_byte_is_bounded():
    async with Peer(says()) as peer:
        with pytest.raises(ConnectionTimedOut):
            await peer.ask(seconds=0.05)


async def test_a_head_alone_is_not_a_first_byte():
    async with Peer(says(CHUNKED.partition(b"6\r\n")[0])) as peer:
        with pytest.raises(ConnectionTimedOut):
            await peer.ask(seconds=0.05)


async def test_an_address_without_a_server_is_broken():
    async with Peer(says(SIZED)) as peer:
        pool = peer.pool
    with pytest.raises(ConnectionBroken, match="cannot connect"):
        await pool.send((REQUEST,), 1.0)


async def test_an_answer_that_is_left_early_hangs_up():
    ended = asyncio.Event()

    async def talk(writer):
        writer.write(CHUNKED.partition(b"5\r\n")[0])
        try:
            while True:
                writer.write(b"1\r\nx\r\n")
                await writer.drain()
                await asyncio.sleep(0.005)
        except ConnectionError:
            ended.set()

    async with Peer(talk) as peer:
        connection, first = await peer.pool.send((REQUEST,), 1.0)
        assert first.startswith(b"hello ")
        connection.release()
        await asyncio.wait_for(ended.wait(), 60)


async def test_being_cancelled_hangs_up():
    async with Peer(says()) as peer:
        asking = asyncio.create_task(peer.ask())
        while not peer.requests:
            await asyncio.sleep(0.001)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        assert len(peer.pool._idle) == 0


async def test_idle_connections_are_let_go(monkeypatch):
    monkeypatch.setattr(connection_pool, "KEEPALIVE_SECONDS", 0.5)
    async with Peer(says(SIZED)) as peer:
        await peer.ask()
        assert len(peer.pool._idle) == 1
        async with asyncio.timeout(60):
            while len(peer.pool._idle) or peer.pool._sweep is not None:
                await asyncio.sleep(0.01)


async def test_a_connection_whose_answer_outlasts_the_pool_is_closed_at_its_end():
    async with Peer(says(SIZED)) as peer:
        await peer.ask()  # An idle connection, which the pool would close later.
        connection, _ = await peer.pool.send((REQUEST,), 5.0)
        peer.pool.close()
        assert connection.usable
        while await connection.read():
            pass
        connection.release()
        assert not connection.usable


async def test_a_reader_that_is_slow_stops_the_worker(monkeypatch):
    monkeypatch.setattr("workers.adapters.connection.BUFFERED_BYTES_MAX", 10_000)
    sent = 0

    async def flood(writer):
        nonlocal sent
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        piece = b"3e8\r\n" + b"x" * 1000 + b"\r\n"
        for _ in range(100_000):
            writer.write(piece)
            await writer.drain()
            sent += 1

    async with Peer(flood) as peer:
        connection, first = await peer.pool.send((REQUEST,), 1.0)
        before = None
        async with asyncio.timeout(60):
            while not sent or sent != before:
                before = sent
                await asyncio.sleep(0.3)
        assert connection._buffered < 1_000_000
        for _ in range(200):
            assert await connection.read()
        assert sent > before
        connection.release()
        assert first


async def test_a_piece_that_is_taken_where_it_arrives_is_not_read():
    head = CHUNKED[: CHUNKED.index(b"6\r\n")]
    parts = (b"1\r\na\r\n", b"1\r\nb\r\n", b"1\r\nc\r\n", b"1\r\nd\r\n0\r\n\r\n")
    offered = []

    def take(piece):
        offered.append(piece)
        return piece == b"b"

    async with Peer(says(head, *parts, pause=0.02)) as peer:
        connection, body = await peer.pool.send((REQUEST,), 5.0)
        connection.take = take
        while piece := await connection.read():
            body += piece
        connection.release()
        assert connection.take is None
    # The first piece belongs to the head, and the last one is not offered.
    assert (offered, body) == ([b"b", b"c"], b"acd")


async def test_what_can_wait_is_done_once_the_request_was_written_or_while_a_connection_is_opened():
    order = []

    async def answer(writer):
        order.append("asked")
        writer.write(SIZED)

    async with Peer(answer) as peer:
        for _ in range(2):
            connection, _ = await peer.pool.send(
                (REQUEST,), 5.0, lambda: order.append("connected"), lambda: order.append("waits")
            )
            connection.release()
    assert order == ["waits", "connected", "asked", "connected", "waits", "asked"]
