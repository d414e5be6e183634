"""The input file of a batch, split into lines."""

import asyncio

from gateway.batches.input_file import split_lines


async def lines(*pieces, bytes_max=100):
    async def arriving():
        for piece in pieces:
            yield piece

    return [found async for found in split_lines(arriving(), bytes_max)]


async def test_blank_lines_are_counted_and_left_out():
    found = await lines(b"\n\n{", b"}\n", b"", b"\r\n \n", b"a", b"\n\nb")
    assert found == [(2, b"{}"), (5, b"a"), (7, b"b")]


async def test_a_line_that_is_too_long_is_cut():
    assert await lines(b"a" * 50, b"a" * 50 + b"\nb", bytes_max=9) == [(0, b"a" * 10), (1, b"b")]


async def test_millions_of_blank_lines_leave_the_loop_to_others():
    turns = 0

    async def others():
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    task = asyncio.create_task(others())
    assert await lines(b"\n" * 1_000_000 + b"a") == [(1_000_000, b"a")]
    task.cancel()
    assert turns > 10
