"""Where launched engines publish: at the address at which they serve, as far as they can."""

import socket

import pytest

from gateway.cli.support import published_ports as module
from gateway.cli.support.published_ports import choose_ports, is_loopback, publishing_address
from workers.probing.installed_engine import EngineAbilities, abilities_in, abilities_of

ALL = EngineAbilities(binds=True, load_feed=True)
SGLANG = """
class ZmqEventPublisher:
    def __init__(self, endpoint, bind: Optional[bool] = None):
        pass

class KVEventsConfig(BaseModel):
    endpoint: str = "tcp://*:5557"

    {more}
"""


def at(engine, host, port=6000, *, ranks=1, load_feed=None, can=ALL):
    found = choose_ports(engine, host, port, ranks=ranks, load_feed=load_feed, can=can)
    return found.events_port, found.replay_port, found.events_at, found.loads_port


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("localhost", "127.0.0.1"),
        ("::1", "127.0.0.1"),
        ("10.0.0.7", "10.0.0.7"),
        ("0.0.0.0", None),
        ("::", None),
        ("2001:db8::7", None),
        ("no-such-host.invalid", None),
    ],
)
def test_the_address_is_the_one_of_the_host(host, address, monkeypatch):
    if host.endswith(".invalid"):

        def unknown(*_, **__):
            raise socket.gaierror("unknown")

        monkeypatch.setattr(module.socket, "getaddrinfo", unknown)
    assert publishing_address(host) == address


def test_only_this_machine_itself_is_loopback():
    assert [is_loopback(host) for host in ("127.0.0.2", "::1", "localhost", "0.0.0.0", "10.0.0.7")] == [
        *(True, True, True),
        *(False, False),
    ]


def test_a_laptops_sglang_publishes_events_to_itself_and_no_load():
    assert at("sglang", "127.0.0.1") == (6000, 6001, "127.0.0.1", None)


def test_sglang_in_a_network_publishes_its_load_behind_the_events_of_all_ranks():
    assert at("sglang", "0.0.0.0", ranks=4) == (6000, 6004, None, 6008)
    assert at("sglang", "10.0.0.7") == (6000, 6001, "10.0.0.7", 6002)


@pytest.mark.parametrize(("wanted", "port"), [(True, 6002), (False, None)], ids=["on", "off"])
@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_an_option_decides_on_a_load_feed_and_its_port(host, wanted, port):
    assert at("sglang", host, load_feed=wanted)[3] == port


def test_vllm_chooses_its_ports_where_it_has_one_address_and_keeps_them_where_it_has_all():
    assert at("vllm", "127.0.0.1", 0, load_feed=False) == (0, 0, "127.0.0.1", None)
    first, replay, address, _ = at("vllm", "0.0.0.0", 0, ranks=2, load_feed=False)
    assert (replay - first, address) == (2, None)


@pytest.mark.parametrize(
    ("engine", "port", "can"),
    [("sglang", 6000, EngineAbilities()), ("vllm", 0, EngineAbilities()), ("vllm", 6000, ALL)],
    ids=["old-sglang", "old-vllm", "vllm-with-a-port"],
)
def test_what_cannot_be_published_at_one_address_is_reported(engine, port, can, caplog):
    first, replay, address, _ = at(engine, "127.0.0.1", port, can=can)
    assert (replay, address) == (first + 1, None)
    assert "the engine publishes KV events on all addresses, not on 127.0.0.1 alone" in caplog.text


def test_on_all_addresses_nothing_is_reported(caplog):
    at("sglang", "0.0.0.0", can=EngineAbilities())
    assert caplog.text == ""


@pytest.mark.parametrize(
    ("engine", "source", "found"),
    [
        ("sglang", SGLANG.format(more="topic: str"), EngineAbilities()),
        ("sglang", SGLANG.format(more="bind: Optional[bool] = None"), EngineAbilities(binds=True)),
        (
            "sglang",
            SGLANG.format(more="") + "def f(load_publish_endpoint): ...",
            EngineAbilities(load_feed=True),
        ),
        ("vllm", 'if endpoint != "tcp://*:0":', EngineAbilities(binds=True)),
        ("vllm", 'endpoint: str = "tcp://*:5557"', EngineAbilities()),
    ],
    ids=["oldest-sglang", "sglang-binds", "sglang-loads", "vllm", "older-vllm"],
)
def test_features_of_an_engine_are_read_from_its_source(engine, source, found):
    assert abilities_in(engine, source) == found


def test_an_interpreter_without_the_engine_can_nothing(tmp_path):
    import sys

    assert abilities_of("sglang", sys.executable) == EngineAbilities()
    assert abilities_of("sglang", str(tmp_path / "nothing")) == EngineAbilities()
