"""Where a worker publishes its KV events and its load, as the settings have it."""

import pytest

from gateway.kv_index.feed_sources import event_sources, load_sources
from gateway.settings.sources import load_settings
from workers.kv_events.source import EventSource
from workers.load_reports.load_subscriber import LoadSource


def worker(tmp_path, more):
    file = tmp_path / "radixgate.yaml"
    file.write_text(
        f"workers:\n  - {{id: w, kind: vllm, url: 'http://gpu-7:8000', {more}}}\n", encoding="utf-8"
    )
    return load_settings(file, {}).settings.workers[0]


def sources(tmp_path, kv_events):
    return event_sources(worker(tmp_path, f"kv_events: {kv_events}"))


def test_auto_uses_the_workers_report_and_off_does_not_follow_it(tmp_path):
    assert sources(tmp_path, "auto") is None
    # Also without quotes: older YAML would read false.
    assert sources(tmp_path, "off") == sources(tmp_path, "'off'") == ()


def test_every_rank_has_the_next_ports_at_the_workers_host(tmp_path):
    at = "{endpoint: 'tcp://*:5557', replay_endpoint: 'tcp://*:6557', topic: kv, ranks: 2}"
    assert sources(tmp_path, at) == (
        EventSource(endpoint="tcp://gpu-7:5557", replay="tcp://gpu-7:6557", topic="kv"),
        EventSource(endpoint="tcp://gpu-7:5558", replay="tcp://gpu-7:6558", topic="kv"),
    )


@pytest.mark.parametrize("endpoint", ["tcp://10.0.0.1:5557", "ipc:///run/kv", "tcp://[::1]:5557"])
def test_an_address_of_its_own_stays_as_it_is(tmp_path, endpoint):
    assert sources(tmp_path, f"{{endpoint: '{endpoint}'}}") == (EventSource(endpoint=endpoint),)


@pytest.mark.parametrize(
    ("load_feed", "found"),
    [
        ("auto", None),
        ("off", ()),
        ("{endpoint: 'tcp://*:5559'}", (LoadSource(endpoint="tcp://gpu-7:5559"),)),
        (
            "{endpoint: 'tcp://10.0.0.1:5559', ranks: 2}",
            (LoadSource(endpoint="tcp://10.0.0.1:5559"), LoadSource(endpoint="tcp://10.0.0.1:5560")),
        ),
    ],
    ids=["auto", "off", "everywhere", "ranks"],
)
def test_a_load_feed_is_found_in_the_same_way(tmp_path, load_feed, found):
    assert load_sources(worker(tmp_path, f"load_feed: {load_feed}")) == found
