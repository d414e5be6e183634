"""Who serves, and where they are found."""

import re
from typing import Annotated, Literal

from msgspec import Meta, field

from gateway.settings.prices import PriceSettings
from gateway.settings.tenants import LimitSettings
from gateway.settings.types import (
    Branch,
    FilePath,
    HttpUrl,
    Identifier,
    Name,
    Port,
    Positive,
    Seconds,
    Secret,
    ZmqUrl,
    form,
)


class KvEventsSettings(Branch, frozen=True, kw_only=True):
    """Where a worker publishes its KV events, if its engine does not say: as in its --kv-events-config."""

    endpoint: Annotated[
        ZmqUrl,
        Meta(
            description="Address of rank 0, tcp://host:port; further ranks have the next ports. "
            "tcp://*:port is at the host of the worker's url."
        ),
    ]
    replay_endpoint: Annotated[
        ZmqUrl | None,
        Meta(
            description="Where rank 0 is asked for what was missed. Without one, events that were missed, or "
            "published before a gateway listened, are lost."
        ),
    ] = None
    topic: Annotated[str, Meta(description="Topic, as the engine has it.", max_length=200)] = ""
    ranks: Annotated[
        Annotated[int, Meta(ge=1, le=1024)],
        Meta(description="Data-parallel ranks, each with a port of its own."),
    ] = 1


class LoadFeedSettings(Branch, frozen=True, kw_only=True):
    """Where a worker publishes how busy it is, if its engine does not say: as in its --load-publish-endpoint."""

    endpoint: Annotated[
        ZmqUrl,
        Meta(
            description="Address of rank 0, tcp://host:port; further ranks have the next ports. "
            "tcp://*:port is at the host of the worker's url."
        ),
    ]
    ranks: Annotated[
        Annotated[int, Meta(ge=1, le=1024)],
        Meta(description="Data-parallel ranks, each with a port of its own."),
    ] = 1


class WorkerTlsSettings(Branch, frozen=True, kw_only=True):
    """How a worker's https:// is spoken; PEM files, read again when they change."""

    ca: Annotated[
        FilePath | None,
        Meta(description="Authorities whose certificate it must have; by default those of the system."),
    ] = None
    certificate: Annotated[
        FilePath | None, Meta(description="The gateway's own certificate, for workers that ask for one.")
    ] = None
    key: Annotated[FilePath | None, Meta(description="Its key.")] = None


class ProviderModelSettings(Branch, frozen=True, kw_only=True):
    """A model at a provider."""

    name: Annotated[Name | None, Meta(description="What the provider calls it; by default as here.")] = None
    prices: Annotated[
        PriceSettings | None,
        Meta(description="What tenants are charged for what it answers; by default as `models[].prices`."),
    ] = None


class ProviderSettings(Branch, frozen=True, kw_only=True):
    """An OpenAI-compatible API outside, run by others and paid for."""

    models: Annotated[
        dict[Name, ProviderModelSettings],
        Meta(
            description="Models that it answers for, by their names here: {m: {name: theirs, prices: {input: 1, "
            "output: 2}}}.",
            min_length=1,
            max_length=1000,
        ),
    ]
    after_ms: Annotated[
        Annotated[int, Meta(ge=10, le=3_600_000)] | None,
        Meta(
            description="A request of a tenant that consents goes there when it has waited so long for a worker "
            "that is no provider; by default as long as its class's target for the first token."
        ),
    ] = None
    rest_seconds_max: Annotated[
        Seconds,
        Meta(
            description="After a 429, or a 503 or 529 with Retry-After, no gateway asks it for anything for as "
            "long as that says, and at most for so long."
        ),
    ] = 60.0
    concurrency: Annotated[
        Positive | None, Meta(description="Requests there at one time, from all gateways together.")
    ] = None
    limits: Annotated[
        tuple[LimitSettings, ...],
        Meta(
            description="What all gateways together may ask of it, as in `plans[].limits`: {requests: 500, per: "
            "minute}, {spend: 100, per: month, reset: calendar}. At a limit it is asked for nothing.",
            max_length=100,
        ),
    ] = ()


Headers = dict[str, Secret]


class WorkerSettings(Branch, frozen=True, kw_only=True):
    """A serving process."""

    id: Annotated[Identifier, Meta(description="Name of the worker here: letters, digits, `.`, `_`, `-`.")]
    kind: Annotated[
        str, Meta(description="What the worker speaks: sglang, vllm, openai, embedded, or a plug-in's kind.")
    ]
    url: Annotated[HttpUrl, Meta(description="http:// or https:// address.")]
    models: Annotated[
        tuple[Name, ...], Meta(description="Models it serves; by default those it reports.")
    ] = ()
    role: Annotated[
        Literal["both", "prefill", "decode"],
        Meta(
            description="`prefill`, `decode`: it computes prompts for the others, or answers with them; `both`: "
            "whole requests, or what its engine says that it was started as."
        ),
    ] = "both"
    api_key: Annotated[Secret | None, Meta(description="Sent to the worker as a bearer token.")] = None
    priority: Annotated[
        Literal["auto", "on", "off"],
        Meta(
            description="`on`: its engine orders requests by `priority` (SGLang: --enable-priority-scheduling, "
            "vLLM: --scheduling-policy priority) and gets that of the service class. `auto`: the embedded one does."
        ),
    ] = "auto"
    dp_rank: Annotated[
        Literal["auto", "off"],
        Meta(
            description="`auto`: of several data-parallel ranks the gateway names the one that is to answer, by "
            "what each has cached and under way; `off`: the engine chooses."
        ),
    ] = "auto"
    headers: Annotated[
        Headers, Meta(description="Sent to it with every request, as {x-team: llm}.", max_length=32)
    ] = field(default_factory=dict)
    tls: Annotated[
        WorkerTlsSettings | None, Meta(description="For https:// with certificates of one's own.")
    ] = None
    kv_events: Annotated[
        Literal["auto", "off"] | KvEventsSettings,
        Meta(
            description="`auto`: follow what the worker publishes of its cache, where it says that it does; `off`: "
            "do not; or where it publishes, for engines that do not say.",
            extra=form("auto, off, or where it publishes: {endpoint: tcp://host:5557}"),
        ),
    ] = "auto"
    load_feed: Annotated[
        Literal["auto", "off"] | LoadFeedSettings,
        Meta(
            description="`auto`: hear how busy the worker is from what it publishes (SGLang's "
            "--load-publish-endpoint), where it says that it does, and ask it where it does not, or falls silent; "
            "`off`: ask it; or where it publishes, for engines that do not say.",
            extra=form("auto, off, or where it publishes: {endpoint: tcp://host:5559}"),
        ),
    ] = "auto"
    prefill_tokens_per_second: Annotated[
        Annotated[float, Meta(ge=1, le=1e8)] | None,
        Meta(
            description="Rated: prompt tokens that it computes a second. Routing goes by that until it has learnt "
            "better from its answers; by default by what its load feed says that it took so far, else by what "
            "other workers of its models take."
        ),
    ] = None
    provider: Annotated[
        ProviderSettings | None,
        Meta(
            description="It is a provider outside (kind openai): overflow and fallback for tenants with `overflow: "
            "allow`, and for nobody else."
        ),
    ] = None


class DiscoverySettings(Branch, frozen=True, kw_only=True):
    """Somewhere else that workers are found, beside `workers`."""

    kind: Annotated[
        Literal["file", "dns", "kubernetes", "redis"],
        Meta(
            description="Where they are found. `redis`: those that register, or that `radixgate workers add` adds."
        ),
    ]
    name: Annotated[
        str, Meta(description="The file, the DNS name, or the Service of Kubernetes.", max_length=1000)
    ] = ""
    namespace: Annotated[str | None, Meta(description="Of the Service; by default the gateway's own.")] = None
    worker_kind: Annotated[str, Meta(description="What they speak (dns, kubernetes).")] = "vllm"
    port: Annotated[
        Port | None, Meta(description="Their port (dns, kubernetes); by default 8000, or the Service's.")
    ] = None
    port_name: Annotated[str | None, Meta(description="Name of the port in the EndpointSlice.")] = None
    models: Annotated[
        tuple[Name, ...], Meta(description="Models they serve; by default those they report.")
    ] = ()
    role: Annotated[
        Literal["both", "prefill", "decode"],
        Meta(description="What they do of a request; see `workers` (dns, kubernetes)."),
    ] = "both"
    api_key: Annotated[Secret | None, Meta(description="Sent to them as a bearer token.")] = None
    priority: Annotated[
        Literal["auto", "on", "off"], Meta(description="As `workers[].priority` (dns, kubernetes).")
    ] = "auto"
    dp_rank: Annotated[
        Literal["auto", "off"], Meta(description="As `workers[].dp_rank` (dns, kubernetes).")
    ] = "auto"
    headers: Annotated[
        Headers, Meta(description="Sent to them with every request (dns, kubernetes).", max_length=32)
    ] = field(default_factory=dict)
    tls: Annotated[
        WorkerTlsSettings | None,
        Meta(description="They are reached by https://, with this (dns, kubernetes); {} will do."),
    ] = None
    every_seconds: Annotated[Seconds, Meta(description="How often to look.")] = 5.0

    def worker(self, address: str, port: int, *, name: str | None = None) -> WorkerSettings:
        """The settings of the worker at an address. `name`: what it is called; by default after its address."""
        host = f"[{address}]" if ":" in address else address
        called = name or f"{self.name}-{address.replace(':', '-')}"
        return WorkerSettings(
            id=re.sub(r"[^A-Za-z0-9._-]", "-", called)[-64:].lstrip("._-"),
            kind=self.worker_kind,
            url=f"http{'s' if self.tls is not None else ''}://{host}:{port}",
            models=self.models,
            role=self.role,
            api_key=self.api_key,
            priority=self.priority,
            dp_rank=self.dp_rank,
            headers=self.headers,
            tls=self.tls,
        )
