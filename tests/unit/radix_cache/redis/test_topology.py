"""Slots, addresses and redirections, as servers and users write them."""

import pytest
from redis.crc import key_slot

from radix_cache.redis.topology import (
    ServerEndpoint,
    SlotRedirect,
    parse_redirect,
    seed_addresses,
    slot_of,
    slot_ranges,
)
from radix_cache.shared.keys import Keys


@pytest.mark.parametrize(
    "key",
    [
        "",
        "123456789",
        "rg:{ix:07}:tree:00ff",
        "{}x",
        "a{}{b}",
        "{a{b}c}",
        "}{",
        "x{y",
        "{acme}:lease:1",
        "ü{é}",
    ],
)
def test_a_key_has_the_slot_that_redis_gives_it(key):
    assert slot_of(key) == slot_of(key.encode()) == key_slot(key.encode())


def test_all_keys_of_a_shard_and_its_channel_have_one_slot():
    keys = Keys()
    for shard in range(keys.shards):
        tag = keys.tag(shard)
        names = [
            keys.log(shard),
            keys.meta(shard),
            keys.names(shard),
            keys.predictions(shard),
            f"{tag}:tree:00",
        ]
        assert {slot_of(name) for name in names} == {slot_of(tag)}


def test_an_address_of_a_cluster_names_its_servers():
    first, second = seed_addresses("rediss+cluster://me:p%40ss@one:7000,[::1]:7001?ssl_cert_reqs=none")
    assert (first.host, first.port, second.host, second.port) == ("one", 7000, "::1", 7001)
    for each in (first, second):
        assert (each.user, each.password, each.tls, each.verify) == ("me", "p@ss", True, False)
    (plain,) = seed_addresses("redis+cluster://one")
    assert (plain.host, plain.port, plain.tls, plain.password) == ("one", 6379, False, "")


@pytest.mark.parametrize(
    "url", ["redis+cluster://", "redis+cluster://a:1,,b:2", "redis+cluster://:7000", "redis://a:1"]
)
def test_an_address_without_servers_is_refused(url):
    with pytest.raises(ValueError, match="cluster"):
        seed_addresses(url)


def test_owners_are_the_primaries_and_one_without_a_name_is_the_server_of_the_call():
    reply = [
        [0, 5460, [b"10.0.0.1", 7000, b"id", []], [b"10.0.0.4", 7003, b"id"]],
        [5461, 10922, [b"", 7001, b"id"]],
        [10923, 16000, [None, 7002, b"id"]],
        [16001, 16383, [b"?", 7002, b"id"]],
    ]
    assert slot_ranges(reply, "asked") == [
        (0, 5460, ServerEndpoint("10.0.0.1", 7000)),
        (5461, 10922, ServerEndpoint("asked", 7001)),
        (10923, 16000, ServerEndpoint("asked", 7002)),
    ]


@pytest.mark.parametrize(
    ("error", "told"),
    [
        ("MOVED 3999 127.0.0.1:6381", SlotRedirect(3999, ServerEndpoint("127.0.0.1", 6381), False)),
        ("ASK 3999 a.example:6381", SlotRedirect(3999, ServerEndpoint("a.example", 6381), True)),
        ("MOVED 1 ::1:6381", SlotRedirect(1, ServerEndpoint("::1", 6381), False)),
        ("MOVED 1 :6381", SlotRedirect(1, ServerEndpoint("asked", 6381), False)),
        ("MOVED 1 ?:6381", None),
        ("MOVED x 127.0.0.1:1", None),
        ("MOVED", None),
        ("ERR MOVED 1 a:1", None),
        ("TRYAGAIN Multiple keys request during rehashing of slot", None),
    ],
)
def test_redirections_are_understood(error, told):
    assert parse_redirect(error, "asked") == told
