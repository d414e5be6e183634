"""TLS and headers to a worker: own authorities, and a client certificate."""

import asyncio
import ssl
import subprocess

import msgspec
import pytest

from radix_cache.match import WorkerId
from tests.fakes.scripted_worker import ScriptedWorker
from tests.fakes.tls_terminator import TlsTerminator, certificate
from workers.adapter import TlsFiles, WorkerCall, WorkerFailed, WorkerTarget
from workers.adapters.client_tls import ClientTls
from workers.adapters.openai import OpenAIAdapter

pytestmark = pytest.mark.any_loop


@pytest.fixture(scope="module")
def pems(tmp_path_factory):
    """Of the worker, and of the gateway."""
    return [certificate(tmp_path_factory.mktemp(name)) for name in ("worker", "gateway")]


@pytest.fixture
async def worker():
    async with ScriptedWorker() as scripted:
        yield scripted


def port_of(url):
    return int(url.rpartition(":")[2])


def adapter(door, tls, **more):
    return OpenAIAdapter(
        WorkerTarget(id=WorkerId("w"), url=f"https://127.0.0.1:{door.port}", tls=tls, **more)
    )


async def probe(door, tls):
    asked = adapter(door, tls)
    try:
        return await asked.probe()
    finally:
        asked.close()


async def test_a_worker_with_a_certificate_of_ones_own_authority_is_reached_and_no_other(worker, pems):
    (cert, key), (other, _) = pems
    async with TlsTerminator(port_of(worker.url), cert, key) as door:
        assert (await probe(door, TlsFiles(ca=str(cert)))).models == ("m",)
        for files in (TlsFiles(), TlsFiles(ca=str(other)), None):
            with pytest.raises(WorkerFailed):
                await probe(door, files)


async def test_a_worker_that_requires_a_certificate_gets_the_gateways(worker, pems):
    (cert, key), (own, own_key) = pems
    async with TlsTerminator(port_of(worker.url), cert, key) as door:
        door._context.load_verify_locations(own)
        door._context.verify_mode = ssl.CERT_REQUIRED
        right = TlsFiles(ca=str(cert), certificate=str(own), key=str(own_key))
        assert (await probe(door, right)).models == ("m",)
        with pytest.raises(WorkerFailed):
            await probe(door, TlsFiles(ca=str(cert)))


async def test_headers_of_a_worker_go_with_every_request_and_stand_in_no_repr(worker):
    target = WorkerTarget(
        id=WorkerId("w"), url=worker.url, api_key="k3y", headers={"x-team": "llm", "x-pass": "s3cret"}
    )
    assert "s3cret" not in repr(target)
    made = OpenAIAdapter(target)
    call = WorkerCall(
        id="1", path="v1/chat/completions", fields={"messages": msgspec.Raw(b"[]")}, model="m", stream=False
    )
    async with asyncio.timeout(60):
        async with made.stream(call) as answer:
            assert answer.status == 200
            assert [chunk async for chunk in answer.chunks()]
    made.close()
    sent = worker.seen[0].headers
    assert (sent["x-team"], sent["x-pass"], sent["Authorization"]) == ("llm", "s3cret", "Bearer k3y")


def test_certificates_that_change_are_read_again_and_broken_ones_leave_the_old(tmp_path, pems):
    (cert, key), (other, _) = pems
    ca = tmp_path / "ca.pem"
    ca.write_bytes(cert.read_bytes())
    tls = ClientTls(TlsFiles(ca=str(ca), certificate=str(cert), key=str(key)))
    first = tls.context()
    assert tls.context() is first
    ca.unlink()
    assert tls.context() is first
    ca.write_bytes(other.read_bytes())
    second = tls.context()
    assert second is not first
    (tmp_path / "new").write_text("no certificate")
    (tmp_path / "new").rename(ca)
    assert tls.context() is second


def test_a_key_that_needs_a_passphrase_is_refused_without_a_prompt_for_it(tmp_path, pems):
    (cert, key), _ = pems
    locked = tmp_path / "locked.pem"
    command = ["openssl", "ec", "-in", str(key), "-out", str(locked), "-aes256", "-passout", "pass:x1y2z3"]
    subprocess.run(command, check=True, capture_output=True)
    with pytest.raises(OSError, match=r".*"):
        ClientTls(TlsFiles(certificate=str(cert), key=str(locked)))
