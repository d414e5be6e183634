"""A connection that serves plain inference requests itself: which ones, and how they begin, wait, go on and end."""

import asyncio

import pytest

from gateway.web.direct import connection as direct
from gateway.web.direct.answer import AnswerHead, DirectAnswer
from gateway.web.direct.connection import DirectConnection, DirectRoutes

PATH = "/v1/chat/completions"


class Transport:
    """A client's side: what was written, and whether reading is paused or the connection closed."""

    def __init__(self):
        self.written = b""
        self.reads, self.closed = True, False

    def write(self, data):
        self.written += data

    def pause_reading(self):
        self.reads = False

    def resume_reading(self):
        self.reads = True

    def is_closing(self):
        return self.closed

    def close(self):
        self.closed = True

    def get_extra_info(self, name):
        return {"peername": ("192.0.2.7", 4711)}[name]


class Aiohttp:
    """The protocol of aiohttp: it only notes what it gets."""

    def __init__(self):
        self.received, self.lost = b"", False

    def connection_made(self, transport):
        pass

    def data_received(self, data):
        self.received += data

    def connection_lost(self, exc):
        self.lost = True

    def pause_writing(self):
        pass

    def resume_writing(self):
        pass

    def keep_alive(self, val):
        pass


class Client:
    """A connection under test. Handlers answer with the request's body, once `may_answer` is set."""

    def __init__(self, *, allowed=True, reads_body=True, keepalive_seconds=75.0, size=None):
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.served, self.cancelled = [], 0
        self.closes, self.reads_body, self.size = False, reads_body, size
        self.aiohttp, self.transport = Aiohttp(), Transport()
        routes = DirectRoutes({PATH: self.handle}, lambda: not allowed)
        self.connection = DirectConnection(self.aiohttp, routes, keepalive_seconds)
        self.connection.connection_made(self.transport)

    async def handle(self, http):
        try:
            self.served.append(http)
            body = http.whole or b""
            while self.reads_body and (piece := await http.content.readany()):
                body += piece
            await self.may_answer.wait()
            headers = {} if self.size is None else {"content-length": str(self.size)}
            answer = http.answer = DirectAnswer(
                http.connection, AnswerHead(200, headers, keep_alive=not self.closes)
            )
            await answer.write(body)
            await answer.write_eof()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return answer

    async def send(self, data):
        self.connection.data_received(data)
        await settled()

    @property
    def answers(self):
        return self.transport.written.count(b"HTTP/1.1 200 OK\r\n")


async def settled():
    for _ in range(10):
        await asyncio.sleep(0)


def post(body=b"{}", *headers, line=b"POST /v1/chat/completions HTTP/1.1", host=b"Host: gateway"):
    lines = [line, host, b"Content-Length: %d" % len(body), *headers, b"", b""]
    return b"\r\n".join(each for each in lines if each or each == b"") + body


async def test_a_plain_request_is_answered_without_aiohttp():
    client = Client()
    await client.send(post(b'{"model": "m"}', b"Authorization: Bearer key", b"Connection: keep-alive"))
    (http,) = client.served
    assert (http.method, http.path, http.remote, http.content_length) == ("POST", PATH, "192.0.2.7", 14)
    assert http.headers["authorization"] == "Bearer key"
    head, _, body = client.transport.written.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ndate: ")
    assert body == b'e\r\n{"model": "m"}\r\n0\r\n\r\n'
    assert (client.aiohttp.received, client.transport.closed) == (b"", False)
    await client.send(post(b"{}"))
    assert (client.answers, client.aiohttp.received) == (2, b"")


NOT_PLAIN = {
    "another method": post(line=b"GET /v1/chat/completions HTTP/1.1"),
    "another path": post(line=b"POST /v1/files HTTP/1.1"),
    "a query": post(line=b"POST /v1/chat/completions?x=1 HTTP/1.1"),
    "another version": post(line=b"POST /v1/chat/completions HTTP/1.0"),
    "a client that waits for 100 Continue": post(b"{}", b"Expect: 100-continue"),
    "a browser's page": post(b"{}", b"Origin: https://example.com"),
    "the last request of its connection": post(b"{}", b"Connection: close"),
    "an upgrade": post(b"{}", b"Connection: keep-alive, Upgrade", b"Upgrade: websocket"),
    "chunks": b"POST /v1/chat/completions HTTP/1.1\r\nHost: g\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "no length": b"POST /v1/chat/completions HTTP/1.1\r\nHost: gateway\r\n\r\n",
    "two lengths": post(b"{}", b"Content-Length: 2"),
    "a length and chunks": post(b"{}", b"Transfer-Encoding: chunked"),
    "no host": post(host=b"X-Other: 1"),
    "a repeated header": post(b"{}", b"X-Forwarded-For: 192.0.2.1", b"x-forwarded-for: 192.0.2.2"),
    "a long head": post(b"{}", b"X-Long: " + 9000 * b"x"),
    "two requests at once": post() + post(),
    "a request and the beginning of another": post() + b"PO",
    "no HTTP": b"\x16\x03\x01\x02\x00",
}


@pytest.mark.parametrize("data", NOT_PLAIN.values(), ids=NOT_PLAIN)
async def test_any_other_request_is_aiohttps_and_so_are_all_that_follow_it(data):
    client = Client()
    await client.send(post())
    await client.send(data)
    await client.send(post())
    assert client.aiohttp.received == data + post()
    assert (client.answers, len(client.served)) == (1, 1)


async def test_no_request_by_a_foreign_name_is_served_here_while_only_local_ones_are_allowed():
    client = Client(allowed=False)
    await client.send(post(host=b"Host: 127.0.0.1"))
    assert client.answers == 1
    await client.send(post())
    assert (client.aiohttp.received, len(client.served)) == (post(), 1)


async def test_a_head_and_a_body_may_arrive_byte_by_byte():
    client, data = Client(), post(b'{"model": "m"}')
    for at in range(len(data)):
        await client.send(data[at : at + 1])
    assert client.transport.written.endswith(b"0\r\n\r\n")
    await client.send(post())
    assert (client.answers, client.aiohttp.received) == (2, b"")


async def test_a_head_in_pieces_that_is_not_plain_reaches_aiohttp_whole():
    client, data = Client(), NOT_PLAIN["a client that waits for 100 Continue"]
    for at in range(0, len(data), 7):
        await client.send(data[at : at + 7])
    assert (client.aiohttp.received, client.served) == (data, [])


async def test_reading_pauses_while_much_of_a_body_is_unread():
    client = Client(reads_body=False)
    client.may_answer.clear()
    data = post(600_000 * b"x")
    await client.send(data[:200_000])
    await client.send(data[200_000:500_000])
    assert not client.transport.reads
    (http,) = client.served
    assert len(http.content.read_nowait()) < 500_000
    assert client.transport.reads
    assert not http.content.is_eof()


async def test_a_request_that_comes_during_another_is_served_after_it():
    client = Client()
    client.may_answer.clear()
    await client.send(post(b"first"))
    await client.send(post(b"second"))
    assert len(client.served) == 1
    client.may_answer.set()
    await settled()
    first, second = client.transport.written.index(b"first"), client.transport.written.index(b"second")
    assert first < second
    assert client.answers == 2


async def test_reading_pauses_while_many_requests_wait_for_one():
    client = Client()
    client.may_answer.clear()
    await client.send(post(b"first"))
    await client.send(post((direct.NEXT_BYTES_MAX + 1) * b"x"))
    assert not client.transport.reads
    client.may_answer.set()
    await settled()
    assert (client.transport.reads, client.answers) == (True, 2)


async def test_a_client_that_leaves_cancels_its_request():
    client = Client()
    client.may_answer.clear()
    await client.send(post())
    client.connection.connection_lost(None)
    await settled()
    assert (client.cancelled, client.aiohttp.lost, client.transport.written) == (1, True, b"")


async def test_the_rest_of_a_body_that_an_answer_did_not_wait_for_is_no_request():
    client = Client(reads_body=False)
    data = post(b"POST / HTTP/1.1\r\n\r\n")
    await client.send(data[:-10])
    assert client.answers == 1
    await client.send(data[-10:] + post())
    assert (client.answers, client.aiohttp.received, client.transport.closed) == (2, b"", False)


async def test_a_body_that_never_ends_after_its_answer_closes_the_connection(monkeypatch):
    monkeypatch.setattr(direct, "LINGER_SECONDS", 0.01)
    client = Client(reads_body=False)
    await client.send(post(b"{}")[:-1])
    while not client.transport.closed:
        await asyncio.sleep(0.01)


async def test_an_answer_waits_for_a_client_that_does_not_read():
    client = Client()
    client.connection.pause_writing()
    await client.send(post())
    assert not client.transport.written.endswith(b"0\r\n\r\n")
    client.connection.resume_writing()
    await settled()
    assert client.transport.written.endswith(b"0\r\n\r\n")


async def test_the_last_answer_of_a_connection_closes_it():
    client = Client()
    client.closes = True
    await client.send(post())
    assert b"\r\nconnection: close\r\n" in client.transport.written
    assert client.transport.closed


async def test_a_failure_of_a_handler_closes_the_connection_and_is_logged(caplog):
    client = Client()
    client.may_answer = None
    await client.send(post())
    assert client.transport.closed
    assert [record.exc_info[0] for record in caplog.records] == [AttributeError]


@pytest.mark.parametrize("more", [b"", b"POST /v1/chat"])
async def test_a_connection_without_a_whole_head_is_closed_after_a_while(more):
    client = Client(keepalive_seconds=0.02)
    await client.send(post())
    await client.send(more)
    while not client.transport.closed:
        await asyncio.sleep(0.01)


async def test_a_connection_is_not_idle_while_a_request_is_served():
    client = Client(keepalive_seconds=0.01)
    await client.send(post())
    client.may_answer.clear()
    await client.send(post())
    await asyncio.sleep(0.05)
    assert not client.transport.closed
    client.may_answer.set()
    await settled()
    assert client.answers == 2


async def test_a_body_of_known_length_is_sent_as_it_is():
    client = Client(size=2)
    await client.send(post(b"{}"))
    assert client.transport.written.endswith(b"\r\n\r\n{}")
    assert b"transfer-encoding" not in client.transport.written


async def test_a_header_with_a_line_break_is_refused():
    with pytest.raises(ValueError, match="line break"):
        AnswerHead(200, {"x": "1\r\ny: 2"}, keep_alive=True)
