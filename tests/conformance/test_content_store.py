"""The contract of ContentStore: content is there whole or not at all, in a directory and in a bucket alike."""

import resource
import tracemalloc

import pytest

from gateway.files.content_store import ContentDown, ContentLost
from gateway.files.directory_store import DirectoryStore
from gateway.files.s3_store import S3ContentStore
from gateway.settings.files import S3Settings
from gateway.settings.types import Secret

MIB = 1024 * 1024


@pytest.fixture(params=["directory", "bucket"])
async def contents(request, tmp_path):
    if request.param == "directory":
        return DirectoryStore(tmp_path / "files")
    server = request.getfixturevalue("s3_server")
    return S3ContentStore(s3(server, await server.bucket()))


def s3(server, bucket):
    return S3Settings(
        bucket=bucket,
        prefix="some/where",
        endpoint=server.url,
        access_key_id=Secret("an id"),
        secret_access_key=Secret("a secret"),
    )


async def pieces(*data):
    for piece in data:
        yield piece


async def whole(contents, name):
    return b"".join([piece async for piece in contents.read(name)])


async def test_what_is_written_is_read(contents):
    for name, data in (("acme/a", (b"one", b"", b"two")), ("acme/empty", ()), ("globex/a", (b"other",))):
        await contents.write(name, pieces(*data))
        assert await whole(contents, name) == b"".join(data)
    await contents.write("acme/a", pieces(b"new"))
    assert await whole(contents, "acme/a") == b"new"


async def test_what_is_deleted_is_lost_and_may_be_deleted_again(contents):
    await contents.write("acme/a", pieces(b"one"))
    for _ in range(2):
        await contents.delete("acme/a")
    with pytest.raises(ContentLost):
        await whole(contents, "acme/a")


async def test_a_content_that_breaks_off_is_never_there(contents):
    class BrokenOff(Exception):
        pass

    async def broken(size):
        for _ in range(size):
            yield b"x" * MIB
        raise BrokenOff

    for size in (1, 20):
        with pytest.raises(BrokenOff):
            await contents.write("acme/a", broken(size))
        with pytest.raises(ContentLost):
            await whole(contents, "acme/a")


async def test_a_large_content_passes_in_bounded_memory(contents):
    async def many():
        for number in range(48):
            yield bytes([number]) * MIB

    tracemalloc.start()
    await contents.write("acme/large", many())
    size, first = 0, b""
    async for piece in contents.read("acme/large"):
        size += len(piece)
        first = first or piece[:1]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (size, first) == (48 * MIB, b"\0")
    assert peak < 30 * MIB


async def test_a_bucket_that_is_not_there_is_down(s3_server):
    contents = S3ContentStore(s3(s3_server, "no-such-bucket"))
    with pytest.raises(ContentDown):
        await contents.write("acme/a", pieces(b"one"))


async def test_an_upload_that_breaks_off_leaves_nothing_in_the_bucket(s3_server):
    bucket = await s3_server.bucket()

    async def broken():
        for _ in range(20):
            yield b"x" * MIB
        raise ValueError

    with pytest.raises(ValueError):
        await S3ContentStore(s3(s3_server, bucket)).write("acme/a", broken())
    assert await s3_server.parts(bucket) == 0


async def test_a_directory_that_cannot_be_made_is_down(tmp_path):
    (tmp_path / "files").write_text("")
    with pytest.raises(ContentDown):
        await DirectoryStore(tmp_path / "files").write("acme/a", pieces(b"one"))


async def test_a_disk_without_room_keeps_nothing_of_what_was_cut_off(tmp_path):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        with pytest.raises(ContentDown):
            await DirectoryStore(tmp_path / "files").write("acme/a", pieces(b"x" * 5000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
