"""Checks of the settings of workers, and of the sources that report workers."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from gateway.settings.tree import Settings
from gateway.settings.types import Secret
from gateway.settings.urls import credentials_problem, url_problem
from gateway.settings.workers import (
    AUTO_KIND,
    DiscoverySettings,
    KvEventsSettings,
    WorkerSettings,
    WorkerTlsSettings,
)
from workers.adapters.disaggregation import DISAGGREGATION_TRAITS
from workers.adapters.registry import adapters

PORT_MAX = 65535

OWN_HEADERS = frozenset(
    [
        *("host", "authorization", "content-type", "content-length", "transfer-encoding", "connection"),
        *(
            "accept-encoding",
            "expect",
            "upgrade",
            "x-request-id",
            "traceparent",
            "te",
            "trailer",
            "keep-alive",
        ),
    ]
)
"""Headers that the gateway itself sends to workers, which settings cannot set."""

_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}")
_HEADER_VALUE = re.compile(r"[\x20-\x7e]{0,8192}")


def worker_problems(worker: WorkerSettings, path: str) -> Iterator[str]:
    """Yield the errors in one worker's settings, from any source; values that may be secret are not quoted."""
    if (problem := kind_problem(worker.kind)) is not None:
        yield f"{path}.kind: {problem}"
    if (problem := url_problem(worker.url) or credentials_problem(worker.url)) is not None:
        yield f"{path}.url: {problem}"
    yield from _worker_connection(worker.headers, worker.tls, path)
    if worker.tls is not None and not worker.url.startswith("https://"):
        yield f"{path}.tls: the address of the worker is not https://"
    if worker.role != "both" and worker.kind not in (*DISAGGREGATION_TRAITS, AUTO_KIND):
        yield f"{path}.role: {_no_disaggregation(worker.kind)}"
    if worker.provider is not None:
        if worker.kind not in ("openai", AUTO_KIND):
            yield f"{path}.provider: a provider must be of kind openai"
        if worker.models:
            yield f"{path}.models: the models of a provider are named in provider.models"
        for at, limit in enumerate(worker.provider.limits):
            if limit.until is not None:
                yield f"{path}.provider.limits[{at}].until: limits of a provider cannot have an end"
    if isinstance(worker.kv_events, KvEventsSettings):
        yield from _event_ports(worker.kv_events, f"{path}.kv_events")


def kind_problem(kind: str) -> str | None:
    """Return what is wrong with a kind of worker; None if there is such a kind."""
    kinds = (AUTO_KIND, *sorted(adapters()))
    return None if kind in kinds else f"there is no kind {kind!r}; there are {', '.join(kinds)}"


def discovery_problems(settings: Settings) -> Iterator[str]:
    """Yield the errors in the sources of workers."""
    seen = set()
    for at, one in enumerate(settings.discovery):
        path = f"$.discovery[{at}]"
        yield from _what_is_found(one, path)
        if (problem := kind_problem(one.worker_kind)) is not None:
            yield f"{path}.worker_kind: {problem}"
        if one.role != "both" and one.worker_kind not in (*DISAGGREGATION_TRAITS, AUTO_KIND):
            yield f"{path}.role: {_no_disaggregation(one.worker_kind)}"
        yield from _worker_connection(one.headers, one.tls, path)
        if (one.headers or one.tls is not None) and one.kind in ("file", "redis"):
            yield f"{path}: workers from a source of kind {one.kind} have their own headers and tls"
        source = (one.kind, one.name, one.selector, one.inference_pool, one.namespace)
        if source in seen:
            yield f"{path}: is named twice"
        seen.add(source)


def _no_disaggregation(kind: str) -> str:
    able = ", ".join(sorted(DISAGGREGATION_TRAITS))
    return f"workers of kind {kind!r} cannot serve disaggregated; these kinds can: {able}"


def _what_is_found(one: DiscoverySettings, path: str) -> Iterator[str]:
    """Yield the errors in the name of a source, or in the settings that replace the name."""
    in_place = [name for name in ("selector", "inference_pool") if getattr(one, name)]
    if in_place and one.kind != "kubernetes":
        yield f"{path}.{in_place[0]}: is for sources of kind kubernetes"
    elif len(in_place) + bool(one.name) > 1:
        yield f"{path}: name, selector and inference_pool are alternatives"
    elif one.kind == "redis" and one.name:
        yield f"{path}.name: a source of kind redis has no name"
    elif one.kind != "redis" and not (one.name or in_place):
        yield f"{path}.name: a source of kind {one.kind} needs a name"
    if one.inference_pool and (one.port is not None or one.port_name is not None):
        yield f"{path}.port: the ports of workers are those of the InferencePool"


def _worker_connection(
    headers: Mapping[str, Secret], tls: WorkerTlsSettings | None, path: str
) -> Iterator[str]:
    for name, value in headers.items():
        if not _HEADER_NAME.fullmatch(name):
            yield f"{path}.headers: {name[:100]!r} is not a name of a header"
        elif name.lower() in OWN_HEADERS:
            yield f"{path}.headers: {name} is set by the gateway itself"
        elif not _HEADER_VALUE.fullmatch(value.reveal()):
            yield f"{path}.headers: the value of {name} must be printable ASCII"
    if tls is None:
        return
    if (tls.certificate is None) != (tls.key is None):
        yield f"{path}.tls: certificate and key belong together"
    for name, file in (("ca", tls.ca), ("certificate", tls.certificate), ("key", tls.key)):
        if file is not None and not Path(file).is_file():
            yield f"{path}.tls.{name}: there is no file {file!r}"


def _event_ports(at: KvEventsSettings, path: str) -> Iterator[str]:
    ranges: list[tuple[str, int, int]] = []
    for name, endpoint in (("endpoint", at.endpoint), ("replay_endpoint", at.replay_endpoint)):
        if endpoint is None:
            continue
        if endpoint.startswith("ipc://"):
            if at.ranks > 1:
                yield f"{path}.{name}: several ranks need tcp://, with a port for each rank"
            continue
        host, _, port = endpoint.rpartition(":")
        first, last = int(port), int(port) + at.ranks - 1
        if not 1 <= first <= last <= PORT_MAX:
            yield f"{path}.{name}: the ports, one for each rank, must be from 1 to {PORT_MAX}"
        if any(host == other and first <= high and low <= last for other, low, high in ranges):
            yield f"{path}.{name}: overlaps the ports of endpoint; each rank needs a port for each"
        ranges.append((host, first, last))
