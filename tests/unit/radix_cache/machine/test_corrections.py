"""Corrections arrive as they were sent; what is too large, or has no receiver, is dropped."""

import asyncio
import socket
from array import array

import pytest

from radix_cache.machine.corrections import BYTES_MAX, CorrectionReader, CorrectionWriter
from radix_cache.match import WorkerId
from radix_cache.namespace import Namespace

SPACE = Namespace(model="m", block_size=16)
W = WorkerId("w")


@pytest.fixture
async def made(tmp_path):
    """What the reader has made of what arrived at tmp_path / "c"."""
    found = []
    reader = CorrectionReader(tmp_path / "c", lambda *correction: found.append(correction))
    reader.start()
    yield found
    reader.close()


@pytest.fixture
def writer(tmp_path):
    writer = CorrectionWriter(tmp_path / "c")
    yield writer
    writer.close()


async def until_there_are(found, count):
    async with asyncio.timeout(30):
        while len(found) < count:
            await asyncio.sleep(0.005)


async def test_a_correction_arrives_as_it_was_sent(made, writer):
    hashes = array("Q", range(1000))
    writer.send(SPACE, hashes, W, 7)
    await until_there_are(made, 1)
    assert made == [(SPACE, hashes, W, 7)]


async def test_what_is_no_correction_is_passed_over(made, writer, tmp_path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
        for data in (b"", b"\xc1", b"\x94\xc0\xc0\xc0\xc0", b"\x94\xc4\x01x\xc4\x01x\xa1w\x01"):
            other.sendto(data, str(tmp_path / "c"))
    writer.send(SPACE, array("Q", [1]), W, 0)
    await until_there_are(made, 1)
    assert made == [(SPACE, array("Q", [1]), W, 0)]


async def test_what_is_too_large_is_not_sent(made, writer):
    writer.send(SPACE, array("Q", range(BYTES_MAX // 8)), W, 7)
    writer.send(SPACE, array("Q", [1]), W, 0)
    await until_there_are(made, 1)
    assert len(made[0][1]) == 1


def test_without_a_receiver_it_is_dropped(writer):
    writer.send(SPACE, array("Q", [1]), W, 0)
