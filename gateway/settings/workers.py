"""Settings of workers, external providers, and the discovery of workers."""

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

AUTO_KIND = "auto"
"""The kind of a worker for which the gateway finds out the kind."""


class KvEventsSettings(Branch, frozen=True, kw_only=True):
    """The addresses of a worker's KV events, if its engine does not report them (see --kv-events-config)."""

    endpoint: Annotated[
        ZmqUrl,
        Meta(
            description="Address of data-parallel rank 0, tcp://host:port; further ranks have the next ports. "
            "tcp://*:port means the host of the worker's `url`."
        ),
    ]
    replay_endpoint: Annotated[
        ZmqUrl | None,
        Meta(
            description="Address at which rank 0 replays events. Without it, events that were missed, or published "
            "before the gateway listened, are lost."
        ),
    ] = None
    topic: Annotated[str, Meta(description="ZMQ topic that the engine publishes to.", max_length=200)] = ""
    ranks: Annotated[
        Annotated[int, Meta(ge=1, le=1024)],
        Meta(description="Number of data-parallel ranks, each with its own port."),
    ] = 1


class LoadFeedSettings(Branch, frozen=True, kw_only=True):
    """The addresses of a worker's load feed, if its engine does not report them (see --load-publish-endpoint)."""

    endpoint: Annotated[
        ZmqUrl,
        Meta(
            description="Address of data-parallel rank 0, tcp://host:port; further ranks have the next ports. "
            "tcp://*:port means the host of the worker's `url`."
        ),
    ]
    ranks: Annotated[
        Annotated[int, Meta(ge=1, le=1024)],
        Meta(description="Number of data-parallel ranks, each with its own port."),
    ] = 1


class WorkerTlsSettings(Branch, frozen=True, kw_only=True):
    """TLS of connections to a worker. All files are in PEM format, and are read again when they change."""

    ca: Annotated[
        FilePath | None,
        Meta(
            description="Certificate authorities for the worker's certificate; by default those of the system."
        ),
    ] = None
    certificate: Annotated[
        FilePath | None, Meta(description="Client certificate of the gateway, for workers that require one.")
    ] = None
    key: Annotated[FilePath | None, Meta(description="Private key of the client certificate.")] = None


class ProviderModelSettings(Branch, frozen=True, kw_only=True):
    """A model at an external provider."""

    name: Annotated[
        Name | None, Meta(description="Name of the model at the provider; by default the same name.")
    ] = None
    prices: Annotated[
        PriceSettings | None,
        Meta(
            description="Prices that tenants are charged for answers of the provider; by default `models[].prices`."
        ),
    ] = None


class ProviderSettings(Branch, frozen=True, kw_only=True):
    """An external provider: a paid OpenAI-compatible API that others run."""

    models: Annotated[
        dict[Name, ProviderModelSettings],
        Meta(
            description="Models of the provider by their names in this gateway, such as {m: {name: theirs, prices: "
            "{input: 1, output: 2}}}.",
            min_length=1,
            max_length=1000,
        ),
    ]
    after_ms: Annotated[
        Annotated[int, Meta(ge=10, le=3_600_000)] | None,
        Meta(
            description="Time that a request waits for one of your own workers before it is sent to the provider, "
            "if its tenant allows that (`overflow`); by default the `ttft_ms` of its service class."
        ),
    ] = None
    rest_seconds_max: Annotated[
        Seconds,
        Meta(
            description="Longest time for which all gateways send the provider nothing after a 429, or a 503 or "
            "529 with Retry-After; up to this bound Retry-After decides."
        ),
    ] = 60.0
    concurrency: Annotated[
        Positive | None,
        Meta(description="Largest number of simultaneous requests of all gateways at the provider."),
    ] = None
    limits: Annotated[
        tuple[LimitSettings, ...],
        Meta(
            description="Limits on all gateways' requests to the provider together, in the form of "
            "`plans[].limits`: {requests: 500, per: minute}, {spend: 100, per: month, reset: calendar}.",
            max_length=100,
        ),
    ] = ()


Headers = dict[str, Secret]


class WorkerSettings(Branch, frozen=True, kw_only=True):
    """A worker: a process that serves models."""

    id: Annotated[
        Identifier,
        Meta(
            description="Id of the worker: letters, digits, `.`, `_`, `-`. In a list of `workers` the default is "
            "made from host and port of the `url`, and an entry may be the `url` alone."
        ),
    ]
    kind: Annotated[
        str,
        Meta(
            description="Kind of the worker: sglang, vllm, openai, embedded, llamacpp, lmdeploy, ollama, tgi, "
            "trtllm, or the kind of a plug-in. `auto`: the gateway identifies the kind from the worker's answers, "
            "and sends requests after that."
        ),
    ] = AUTO_KIND
    url: Annotated[HttpUrl, Meta(description="Address of the worker, http:// or https://.")]
    models: Annotated[
        tuple[Name, ...], Meta(description="Models that the worker serves; by default those that it reports.")
    ] = ()
    role: Annotated[
        Literal["both", "prefill", "decode"],
        Meta(
            description="Role in disaggregated serving. `prefill`: computes prompts for decode workers; `decode`: "
            "generates the answers; `both`: whole requests, or the role that the engine reports."
        ),
    ] = "both"
    api_key: Annotated[
        Secret | None, Meta(description="Key that is sent to the worker as a bearer token.")
    ] = None
    priority: Annotated[
        Literal["auto", "on", "off"],
        Meta(
            description="`on`: send the engine the priority of the service class, by which it orders requests "
            "(SGLang: --enable-priority-scheduling, vLLM: --scheduling-policy priority). `auto`: only for the "
            "embedded engine."
        ),
    ] = "auto"
    dp_rank: Annotated[
        Literal["auto", "off"],
        Meta(
            description="`auto`: the gateway chooses among data-parallel ranks by their caches and their running "
            "requests; `off`: the engine chooses."
        ),
    ] = "auto"
    headers: Annotated[
        Headers,
        Meta(
            description="Headers that are sent to the worker with every request, such as {x-team: llm}.",
            max_length=32,
        ),
    ] = field(default_factory=dict)
    tls: Annotated[
        WorkerTlsSettings | None,
        Meta(description="TLS settings of an https:// address with certificates of your own."),
    ] = None
    kv_events: Annotated[
        Literal["auto", "off"] | KvEventsSettings,
        Meta(
            description="KV events, by which the gateway follows the worker's cache. `auto`: use the events if "
            "the engine reports that it publishes them; `off`: do not use them; or the addresses, for engines that "
            "do not report them.",
            extra=form("auto, off, or the address of the events: {endpoint: tcp://host:5557}"),
        ),
    ] = "auto"
    load_feed: Annotated[
        Literal["auto", "off"] | LoadFeedSettings,
        Meta(
            description="Load feed, by which the gateway learns the worker's load (SGLang's "
            "--load-publish-endpoint). `auto`: use the feed if the engine reports one, and probe the worker if "
            "not or if the feed stops; `off`: probe the worker; or the address, for engines that do not report "
            "it.",
            extra=form("auto, off, or the address of the feed: {endpoint: tcp://host:5559}"),
        ),
    ] = "auto"
    prefill_tokens_per_second: Annotated[
        Annotated[float, Meta(ge=1, le=1e8)] | None,
        Meta(
            description="Prompt tokens that the worker computes per second. Routing assumes this speed until it is "
            "learnt from answers; the default is the speed in the load feed, else that of other workers with the "
            "same models."
        ),
    ] = None
    slots: Annotated[
        Annotated[int, Meta(ge=1, le=1_000_000)] | None,
        Meta(
            description="Requests that the engine runs at a time (vLLM's --max-num-seqs times its ranks), for "
            "engines that do not report it. While the slots of all workers of a model are known, batch work "
            "and chats fill the workers that more urgent classes leave."
        ),
    ] = None
    provider: Annotated[
        ProviderSettings | None,
        Meta(
            description="Marks an external provider (kind openai), which is used for overflow and fallback, "
            "only for tenants with `overflow: allow`."
        ),
    ] = None


def expand_workers(listed: object) -> object:
    """Return a list of workers, as users write it, with every worker as a mapping that has an id.

    Entries with any other mistake are returned unchanged, so that the checks report them.
    """
    if not isinstance(listed, list):
        return listed
    return [_expand_worker(entry) for entry in listed]


def _expand_worker(entry: object) -> object:
    if isinstance(entry, str):
        entry = {"url": entry}
    if not isinstance(entry, dict) or "id" in entry or not isinstance(entry.get("url"), str):
        return entry
    return {"id": worker_id_of(entry["url"]), **entry}


def worker_id_of(url: str) -> str:
    """Return the id of a worker that has no other: host, port and path of its URL."""
    rest = url.partition("://")[2].rpartition("@")[2] or url
    return re.sub(r"[^A-Za-z0-9._-]+", "-", rest).strip("._-")[-64:].lstrip("._-") or "worker"


class DiscoverySettings(Branch, frozen=True, kw_only=True):
    """A source of workers besides `workers`."""

    kind: Annotated[
        Literal["file", "dns", "kubernetes", "redis"],
        Meta(
            description="Kind of the source. `redis`: workers that register themselves or that `radixgate "
            "workers add` adds."
        ),
    ]
    name: Annotated[
        str,
        Meta(description="Path of the file, DNS name, or name of the Kubernetes Service.", max_length=1000),
    ] = ""
    selector: Annotated[
        str,
        Meta(
            description="Label selector of pods (kubernetes), in place of `name`: app=vllm,tier in (chat,code).",
            max_length=1000,
        ),
    ] = ""
    inference_pool: Annotated[
        str,
        Meta(
            description="Name of an InferencePool of the Gateway API Inference Extension (kubernetes), in place "
            "of `name`. It defines the selector and the target ports of the pods.",
            max_length=253,
        ),
    ] = ""
    namespace: Annotated[
        str | None,
        Meta(
            description="Namespace of the Service, the pods or the InferencePool; by default that of the gateway."
        ),
    ] = None
    worker_kind: Annotated[
        str, Meta(description="Kind of the workers (dns, kubernetes), as `workers[].kind`.")
    ] = "vllm"
    port: Annotated[
        Port | None,
        Meta(
            description="Port of the workers (dns, kubernetes); by default 8000, or that of the Service. An "
            "InferencePool has its own."
        ),
    ] = None
    port_name: Annotated[
        str | None, Meta(description="Name of the port in the EndpointSlice or the pod (kubernetes).")
    ] = None
    models: Annotated[
        tuple[Name, ...],
        Meta(description="Models that the workers serve; by default those that they report."),
    ] = ()
    role: Annotated[
        Literal["both", "prefill", "decode"],
        Meta(description="As `workers[].role` (dns, kubernetes)."),
    ] = "both"
    api_key: Annotated[
        Secret | None, Meta(description="Key that is sent to the workers as a bearer token.")
    ] = None
    priority: Annotated[
        Literal["auto", "on", "off"], Meta(description="As `workers[].priority` (dns, kubernetes).")
    ] = "auto"
    dp_rank: Annotated[
        Literal["auto", "off"], Meta(description="As `workers[].dp_rank` (dns, kubernetes).")
    ] = "auto"
    headers: Annotated[
        Headers,
        Meta(
            description="Headers that are sent to the workers with every request (dns, kubernetes).",
            max_length=32,
        ),
    ] = field(default_factory=dict)
    tls: Annotated[
        WorkerTlsSettings | None,
        Meta(
            description="Connect to the workers by https:// with these settings (dns, kubernetes); {} for the "
            "defaults."
        ),
    ] = None
    every_seconds: Annotated[
        Seconds,
        Meta(
            description="Seconds between two queries of the source (file, dns). Other sources report changes; "
            "kubernetes is also queried at this interval if the service account may list but not watch."
        ),
    ] = 5.0

    def worker(self, address: str, port: int, *, name: str | None = None) -> WorkerSettings:
        """Return the settings of the worker at an address; its id is `name`, or made from the address."""
        host = f"[{address}]" if ":" in address else address
        worker_name = name or f"{self.name}-{address.replace(':', '-')}"
        return WorkerSettings(
            id=re.sub(r"[^A-Za-z0-9._-]", "-", worker_name)[-64:].lstrip("._-"),
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
