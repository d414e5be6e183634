"""The usage journal: lines in files, which the next process takes over."""

import multiprocessing
import os
import signal
import zlib

import msgspec
import pytest

from gateway.ledger import journal as segments
from gateway.ledger.attribution import attribution
from gateway.ledger.entry import UsageEntry, encode
from gateway.ledger.journal import Journal
from gateway.ledger.segment import line_of


def entry(number, **more):
    fields = {
        "request_id": f"req-{number}",
        "attempt": 1,
        "at_ms": 1_000 + number,
        "organisation": "org",
        "tenant": "acme",
        "key_id": "k",
        "asked": "m",
        "model": "m",
        "worker": "w0",
        "surface": "chat/completions",
        "prompt_tokens": 10,
        "cached_tokens": None,
        "output_tokens": 2,
        "cost": 3,
        "ttft_ms": 4,
        "duration_ms": 5,
        "status": 200,
        "code": "ok",
        "tags": {"line": "\n", "pair": "é"},
    }
    return UsageEntry(**{**fields, **more})


def journal(directory, **more):
    return Journal(directory, **{"bytes_max": 2**20, **more})


def everything(of):
    """What all segments say."""
    found = []
    for segment in of.segments:
        position = 0
        while position < segment.size:
            portion = segment.read(position, 3)
            found += portion.entries
            if portion.end == position:
                break
            position = portion.end
    return found


def test_what_is_appended_is_read_again(tmp_path):
    made, entries = journal(tmp_path), [entry(n) for n in range(10)]
    for each in entries:
        made.append(each)
    assert everything(made) == entries
    made.close()


def test_what_a_process_has_left_is_taken_over_and_what_a_living_one_holds_is_not(tmp_path):
    first = journal(tmp_path)
    first.append(entry(1))
    second = journal(tmp_path)
    second.adopt()
    assert everything(second) == []
    first.close()
    second.adopt()
    second.adopt()
    assert everything(second) == [entry(1)]
    second.close()


def _append_and_die(directory):
    left = journal(directory)
    for number in range(100):
        left.append(entry(number))
    os.kill(os.getpid(), signal.SIGKILL)


def test_what_was_appended_outlives_a_process_that_is_killed(tmp_path):
    process = multiprocessing.get_context("fork").Process(target=_append_and_die, args=(tmp_path,))
    process.start()
    process.join(30)
    assert process.exitcode == -signal.SIGKILL
    after = journal(tmp_path)
    after.adopt()
    assert everything(after) == [entry(number) for number in range(100)]
    after.close()


@pytest.mark.parametrize("cut", [1, 5, 12, 40])
def test_a_line_that_was_torn_costs_only_itself(tmp_path, cut):
    lines = [line_of(entry(number)) for number in range(3)]
    (tmp_path / "0-a.journal").write_bytes(lines[0] + b"nonsense\n" + lines[1] + lines[2][:-cut])
    found = journal(tmp_path)
    found.adopt()
    segment = found.segments[0]
    first = segment.read(0, 10)
    assert (first.entries, first.spoilt) == ([entry(0), entry(1)], 1)
    last = segment.read(first.end, 10)
    assert (last.entries, last.spoilt, last.end) == ([], 1, segment.size)
    found.close()


def test_a_line_with_a_right_checksum_and_wrong_fields_is_none(tmp_path):
    text = encode(["usage", 1, 2])
    (tmp_path / "0-a.journal").write_bytes(b"%08x %s\n" % (zlib.crc32(text), text))
    found = journal(tmp_path)
    found.adopt()
    assert found.segments[0].read(0, 10).spoilt == 1
    found.close()


def test_an_entry_of_an_earlier_version_is_read(tmp_path):
    text = encode(entry(1)).replace(b',null,{"line":"\\n","pair":"\xc3\xa9"}]', b"]")
    (tmp_path / "0-a.journal").write_bytes(b"%08x %s\n" % (zlib.crc32(text), text))
    found = journal(tmp_path)
    found.adopt()
    assert everything(found) == [entry(1, tags=None)]
    found.close()


def test_beyond_its_bound_entries_are_dropped_and_counted(tmp_path):
    size = len(line_of(entry(1)))
    made = journal(tmp_path, bytes_max=2 * size)
    for _ in range(5):
        made.append(entry(1))
    assert (len(everything(made)), made.dropped, made.bytes) == (2, 3, 2 * size)
    made.segments[0].shipped = size
    made.append(entry(1))
    assert made.dropped == 3
    made.close()


def test_what_the_disk_does_not_take_waits_in_memory(tmp_path, monkeypatch):
    made, write = journal(tmp_path), os.write

    def full(number, data):
        raise OSError(28, "No space left on device")

    def half(number, data):
        return write(number, bytes(data)[:7])

    monkeypatch.setattr(os, "write", full)
    made.append(entry(1))
    monkeypatch.setattr(os, "write", half)
    made.append(entry(2))
    assert everything(made) == []
    monkeypatch.setattr(os, "write", write)
    made.append(entry(3))
    assert everything(made) == [entry(1), entry(2), entry(3)]
    made.close()


async def test_a_file_that_is_done_is_removed(tmp_path):
    made = journal(tmp_path)
    made.append(entry(1))
    await made.sync()
    segment = made.segments[0]
    segment.shipped = segment.size
    assert not segment.done
    made.close()
    assert os.listdir(tmp_path) == []


RAW = {
    '"ada"': "ada",
    '""': None,
    "7": None,
    "null": None,
    r'"a\u0000b"': "a\ufffdb",
    '"' + "x" * 300 + '"': "x" * 256,
    "nonsense": None,
}


@pytest.mark.parametrize("raw", RAW)
def test_a_user_is_text_within_its_bounds(raw):
    assert attribution({"user": msgspec.Raw(raw.encode())})[0] == RAW[raw]


def test_tags_are_pairs_of_texts_within_their_bounds():
    many = {f"n{number}": "v" for number in range(40)}
    given = {
        "ok": "yes",
        "number": 7,
        "": "x",
        "long" * 20: "x",
        "big": "x" * 513,
        'q"': "x",
        "nul": "\0",
        **many,
    }
    _, tags = attribution({"metadata": msgspec.Raw(msgspec.json.encode(given))})
    assert len(tags) == 16
    assert {"ok": "yes", "nul": "\ufffd", "n0": "v"}.items() <= dict(tags).items()
    assert not {"number", "", "long" * 20, "big", 'q"'} & set(tags)
    for raw in (b"[]", b'"x"', b"{", b"[" * 100_000):
        assert attribution({"metadata": msgspec.Raw(raw)})[1] == {}


async def test_a_file_that_is_removed_during_a_sync_is_left_out_of_it(tmp_path, monkeypatch):
    made, fsync, synced = journal(tmp_path), os.fsync, []
    monkeypatch.setattr(segments, "SEGMENT_BYTES", 1)
    for number in range(3):
        made.append(entry(number))
        made.turn_over()
    shipped = made.segments[:3]

    def ship_all_meanwhile(number):
        fsync(number)
        synced.append(number)
        for segment in shipped:
            segment.shipped = segment.size
            if segment in made.segments:
                made.forget(segment)

    monkeypatch.setattr(os, "fsync", ship_all_meanwhile)
    await made.sync()
    assert len(synced) == 1
    assert len(os.listdir(tmp_path)) == 1
    made.close()


async def test_what_other_processes_have_left_counts_for_the_bound(tmp_path):
    size = len(line_of(entry(1)))
    left = journal(tmp_path)
    left.append(entry(1))
    left.append(entry(1))
    left.close()
    made = journal(tmp_path, bytes_max=3 * size)
    made.append(entry(1))
    made.adopt()
    made.append(entry(1))
    assert (made.dropped, made.bytes) == (1, 3 * size)
    made.close()


async def test_a_position_that_the_database_takes_back_counts_for_the_bound_at_the_next_sync(tmp_path):
    size = len(line_of(entry(1)))
    made = journal(tmp_path, bytes_max=4 * size)
    for _ in range(3):
        made.append(entry(1))
    made.segments[0].shipped = 3 * size
    for _ in range(2):
        made.append(entry(1))
    made.segments[0].shipped = 0
    await made.sync()
    made.append(entry(1))
    assert made.dropped == 1
    made.close()
