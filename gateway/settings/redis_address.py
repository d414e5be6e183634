"""Checks of Redis addresses before a connection is made."""

import re
from urllib.parse import urlsplit

from radix_cache.redis.connection import OPTIONS, RedisAddress
from radix_cache.redis.sentinel import SentinelAddress, is_sentinel
from radix_cache.redis.topology import is_cluster, server_urls


def redis_url_problem(url: str) -> str | None:
    """Return what is wrong with the address, without quoting secrets in it; None if it is valid."""
    if is_cluster(url):
        try:
            servers = server_urls(url)
        except ValueError:
            return "there is no host; write redis+cluster://host:6379,host:6379"
        return next(filter(None, map(redis_url_problem, servers)), None)
    if is_sentinel(url):
        try:
            SentinelAddress(url)
        except ValueError as err:
            return str(err)
        return None
    try:
        parts = urlsplit(url)
    except ValueError:
        return "it is not a valid URL"
    if parts.scheme == "unix":
        if not parts.path.strip("/"):
            return "there is no path; write unix:///run/valkey.sock"
    elif parts.scheme in ("redis", "rediss"):
        try:
            port = parts.port
        except ValueError:
            port = 0
        if port == 0:
            return "the port is not one of 1 to 65535 (a password's /, @, # and ? are written %2F, %40, %23, %3F)"
        if not parts.hostname:
            return "there is no host; write redis://host:6379/0"
        if not re.fullmatch(r"/?\d*", parts.path):
            return "the database is not a number; write redis://host:6379/0"
    else:
        return "expected redis://, rediss://, unix://, redis+sentinel:// or redis+cluster://"
    try:
        RedisAddress(url)
    except ValueError:
        return f"the query has an option that is not one of {', '.join(sorted(OPTIONS))}, or a wrong value"
    return None
