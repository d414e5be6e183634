"""The access log's queue and thread: bounded, never in the way, and what it does with its file."""

import json

from gateway.telemetry.access_log import AccessLine, AccessLog


def line(number=0):
    return AccessLine(
        seconds=1_800_000_000.25,
        tenant="acme",
        key_id="7Kq3",
        method="POST",
        route="/v1/chat/completions",
        status=200,
        bytes=12,
        ms=1.5,
        request_id=f"req-{number}",
    )


def lines(path):
    return [json.loads(text) for text in path.read_text().splitlines()]


def test_a_line_is_one_object_of_json(tmp_path):
    log = AccessLog(str(tmp_path / "log"))
    log.start()
    log.put(line())
    log.close()
    assert lines(tmp_path / "log") == [
        {
            "at": "2027-01-15T08:00:00.250Z",
            "tenant": "acme",
            "key_id": "7Kq3",
            "method": "POST",
            "route": "/v1/chat/completions",
            "status": 200,
            "bytes": 12,
            "ms": 1.5,
            "request_id": "req-0",
        }
    ]


def test_lines_keep_their_order_and_all_are_written_before_it_closes(tmp_path):
    log = AccessLog(str(tmp_path / "log"))
    for number in range(2000):
        log.put(line(number))
    log.start()
    log.close()
    assert [one["request_id"] for one in lines(tmp_path / "log")] == [f"req-{n}" for n in range(2000)]
    assert log.dropped == 0


def test_what_is_beyond_the_bound_is_dropped_and_counted(tmp_path):
    log = AccessLog(str(tmp_path / "log"), lines_waiting_max=3)
    for number in range(5):
        log.put(line(number))
    assert log.dropped == 2
    log.start()
    log.close()
    assert len(lines(tmp_path / "log")) == 3


def test_a_file_that_cannot_be_written_costs_lines_and_is_logged_once(tmp_path, caplog):
    log = AccessLog(str(tmp_path / "missing" / "log"))
    log.start()
    for number in range(3):
        log.put(line(number))
    log.close()
    assert log.dropped == 3
    assert caplog.text.count("the access log cannot be written") == 1


def test_a_file_that_is_moved_away_is_made_anew(tmp_path):
    path = tmp_path / "log"
    log = AccessLog(str(path))
    log._write([line(1)])
    path.rename(tmp_path / "log.1")
    log._write([line(2)])
    log._write([line(3)])
    assert [one["request_id"] for one in lines(tmp_path / "log.1")] == ["req-1"]
    assert [one["request_id"] for one in lines(path)] == ["req-2", "req-3"]
