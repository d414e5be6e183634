"""Settings of the gateway's listeners: for tenants, for an Envoy in front of the gateway, and for operators."""

import re
from functools import lru_cache
from ipaddress import ip_address
from typing import Annotated

from msgspec import Meta

from gateway.settings.token_issuers import OperatorIssuerSettings
from gateway.settings.types import (
    Branch,
    FilePath,
    Host,
    Network,
    Origin,
    Port,
    Positive,
    Secret,
)

_LOOPBACK_HEADER = re.compile(r"(localhost|127(\.\d{1,3}){3}|\[::1\])(:\d*)?", re.IGNORECASE)


class ListenerTlsSettings(Branch, frozen=True, kw_only=True):
    """The certificate of a listener. The files are read again when they change; open connections are not closed."""

    certificate: Annotated[
        FilePath, Meta(description="PEM file with the certificate, followed by intermediate certificates.")
    ]
    key: Annotated[FilePath, Meta(description="PEM file with the private key, without a passphrase.")]
    client_ca: Annotated[
        FilePath | None,
        Meta(
            description="PEM file of certificate authorities: clients then need a certificate from one of them."
        ),
    ] = None


class EndpointPickerSettings(Branch, frozen=True, kw_only=True):
    """The listener for an Envoy that asks for the worker of each request (gRPC, needs the extra `ext-proc`)."""

    host: Annotated[
        Host,
        Meta(
            description="Address to listen on. Callers are trusted like `listen.trusted_proxies`: they report the "
            "client's address, and receive the workers' API keys."
        ),
    ] = "127.0.0.1"
    port: Annotated[Port, Meta(description="Port to listen on; 0 takes a free one.")] = 9002
    tls: Annotated[
        ListenerTlsSettings | None, Meta(description="Serve gRPC over TLS with this certificate.")
    ] = None


class ListenSettings(Branch, frozen=True, kw_only=True):
    """The listener for tenants."""

    host: Annotated[Host, Meta(description="Address to listen on.")] = "127.0.0.1"
    port: Annotated[Port, Meta(description="Port to listen on; 0 takes a free one.")] = 8000
    unix_socket: Annotated[
        FilePath | None, Meta(description="Path of a unix socket to listen on instead of `host` and `port`.")
    ] = None
    processes: Annotated[
        int,
        Meta(
            ge=1,
            le=256,
            description="Number of gateway processes on this machine that share the port (`--processes`).",
        ),
    ] = 1
    tls: Annotated[ListenerTlsSettings | None, Meta(description="Serve https:// with this certificate.")] = (
        None
    )
    trusted_proxies: Annotated[
        tuple[Network, ...],
        Meta(
            description="Address ranges of proxies in front of the gateway, such as 10.0.0.0/8, which report the "
            "client's address in `X-Forwarded-For`. The caller of a unix socket counts as a proxy."
        ),
    ] = ()
    connections_per_address_max: Annotated[
        Positive,
        Meta(
            description="Largest number of open connections from one address (IPv6: one /64). Trusted proxies have "
            "no limit."
        ),
    ] = 1000
    endpoint_picker: Annotated[
        EndpointPickerSettings | None,
        Meta(
            description="Listener for Envoy as an endpoint picker of the Gateway API Inference Extension: Envoy "
            "carries the requests, the gateway authenticates, queues, places and settles them. Off by default."
        ),
    ] = None
    memory_bytes_max: Annotated[
        Positive,
        Meta(
            description="Memory in bytes for all requests of one gateway process: their bodies, raw and decoded, "
            "media that are fetched for them, and answers of more than a megabyte that are not streamed. Beyond it "
            "requests get a 503 with `retry-after`; a tenant with several requests may hold at most seven times "
            "what is free."
        ),
    ] = 256 * 1024**2
    origins: Annotated[
        tuple[Origin, ...],
        Meta(
            description="Origins of web pages that may call the API from a browser (CORS), such as "
            "https://chat.example.com. `*` allows all origins, or, if there are no tenants, those of this machine."
        ),
    ] = ()


class AdminSettings(Branch, frozen=True, kw_only=True):
    """The listener for operators: /metrics, /health/live, /health/ready, /ui, /admin/v1."""

    host: Annotated[Host, Meta(description="Address to listen on.")] = "127.0.0.1"
    port: Annotated[Port, Meta(description="Port to listen on; 0 takes a free one.")] = 8001
    tls: Annotated[ListenerTlsSettings | None, Meta(description="Serve https:// with this certificate.")] = (
        None
    )
    token: Annotated[
        Secret | None,
        Meta(
            description="Token that /ui and /admin/v1 require, with at least 128 random bits. Without a token both "
            "answer on loopback addresses only."
        ),
    ] = None
    metrics_token: Annotated[
        Secret | None,
        Meta(
            description="Bearer token that /metrics requires. Without a token, /metrics on a loopback address "
            "answers only requests to this machine's host names."
        ),
    ] = None
    issuers: Annotated[
        tuple[OperatorIssuerSettings, ...],
        Meta(description="Identity providers whose tokens operators may use for /admin/v1.", max_length=10),
    ] = ()


@lru_cache(maxsize=64)
def names_loopback(header: str) -> bool:
    """Return whether a Host header names this machine by a loopback address or name."""
    return _LOOPBACK_HEADER.fullmatch(header) is not None


def is_loopback(host: str) -> bool:
    """Return whether this address can be reached from this machine only."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
