"""Where a gateway listens."""

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


class ListenerTlsSettings(Branch, frozen=True, kw_only=True):
    """A listener's certificate. Its files are read again when they change; connections that stand stay."""

    certificate: Annotated[
        FilePath, Meta(description="PEM file: the certificate, and those between it and its CA.")
    ]
    key: Annotated[FilePath, Meta(description="PEM file with its key, without a passphrase.")]
    client_ca: Annotated[
        FilePath | None,
        Meta(description="PEM file of authorities: callers then need a certificate of theirs."),
    ] = None


class ListenSettings(Branch, frozen=True, kw_only=True):
    """Where tenants connect."""

    host: Annotated[Host, Meta(description="Address to listen on.")] = "127.0.0.1"
    port: Annotated[Port, Meta(description="Port; 0 takes a free one.")] = 8000
    unix_socket: Annotated[
        FilePath | None, Meta(description="Path of a unix socket to listen on instead of host and port.")
    ] = None
    processes: Annotated[
        int,
        Meta(
            ge=1,
            le=256,
            description="Gateways on this machine that share the port, each on a core of its own (`--processes`).",
        ),
    ] = 1
    tls: Annotated[ListenerTlsSettings | None, Meta(description="Serve https:// with this certificate.")] = (
        None
    )
    trusted_proxies: Annotated[
        tuple[Network, ...],
        Meta(
            description="Proxies in front of the gateway, as 10.0.0.0/8: who connects through them is whom their "
            "`X-Forwarded-For` names. A unix socket's caller is one."
        ),
    ] = ()
    connections_per_address_max: Annotated[
        Positive,
        Meta(
            description="Connections of one address (IPv6: one /64) at one time; those of proxies do not count."
        ),
    ] = 1000
    origins: Annotated[
        tuple[Origin, ...],
        Meta(
            description="Pages whose scripts may call the API from a browser (CORS), as https://chat.example.com; "
            "`*`: any, and without tenants those of this machine."
        ),
    ] = ()


class AdminSettings(Branch, frozen=True, kw_only=True):
    """Where operators connect: /metrics, /health/live, /health/ready, /ui, /admin/v1."""

    host: Annotated[Host, Meta(description="Address to listen on.")] = "127.0.0.1"
    port: Annotated[Port, Meta(description="Port; 0 takes a free one.")] = 8001
    tls: Annotated[ListenerTlsSettings | None, Meta(description="Serve https:// with this certificate.")] = (
        None
    )
    token: Annotated[
        Secret | None,
        Meta(description="Needed for /ui and /admin/v1; without one they answer on loopback addresses only."),
    ] = None
    issuers: Annotated[
        tuple[OperatorIssuerSettings, ...],
        Meta(description="Identity providers whose tokens operators may use for /admin/v1.", max_length=10),
    ] = ()


def is_loopback(host: str) -> bool:
    """Is this address reachable from this machine only?"""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
