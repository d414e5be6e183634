"""Checks of the whole settings tree: dependencies between settings, and probable mistakes."""

import re
from collections.abc import Iterator, Mapping, Sequence, Set
from ipaddress import ip_address
from math import log2
from os import fsencode
from pathlib import Path
from typing import Any

from gateway.settings.database_address import NONE, database_url_problem, sqlite_file
from gateway.settings.error_messages import explain_error, setting_paths
from gateway.settings.listeners import is_loopback
from gateway.settings.models import TOKENIZER_KEYWORDS
from gateway.settings.redis_address import redis_url_problem
from gateway.settings.stores import cell_problems
from gateway.settings.token_issuers import IssuerSettings
from gateway.settings.tree import Settings
from gateway.settings.types import Secret
from gateway.settings.urls import credentials_problem, url_problem
from gateway.settings.usage import webhook_secret
from gateway.settings.workers import (
    AUTO_KIND,
    DiscoverySettings,
    KvEventsSettings,
    WorkerSettings,
    WorkerTlsSettings,
)
from policies.registry import OptionsInvalid, PolicyError, queue_policy, routing_policy, tenant_order
from workers.adapters.disaggregation import DISAGGREGATION_TRAITS
from workers.adapters.registry import adapters

TOKEN_BITS_MIN = 128
TOKEN_DISTINCT_CHARACTERS_MIN = 8
"""The least strength of a token that a person chooses, in bits."""


ENVIRONMENT_PREFIX = "RADIXGATE__"
PORT_MAX = 65535
SOCKET_PATH_BYTES_MAX = 103
"""The length that all operating systems accept: macOS 103, Linux 107."""

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
_PREFIX_START = ENVIRONMENT_PREFIX.removesuffix("_")
# Kubernetes sets such variables for the services of a namespace, and services are named after the release.
_KUBERNETES_NAME = re.compile(r"_SERVICE_HOST$|_SERVICE_PORT(_\w+)?$|_PORT_\d+_(TCP|UDP|SCTP)(_\w+)?$")
_KUBERNETES_VALUE = re.compile(r"(tcp|udp|sctp)://")


TOKENIZER_HINT = (
    "; the gateway downloads nothing: name a directory with tokenizer.json, or write `worker`, and the engine "
    "tokenizes"
)


def first_problem(settings: Settings) -> str | None:
    """Return the first error as `$.path: reason`; None if the settings are valid."""
    return next(_problems(settings), None)


def _problems(settings: Settings) -> Iterator[str]:
    if not settings.workers and not settings.discovery:
        yield (
            "$.workers: at least one worker is needed, or discovery: `radixgate serve --worker "
            "http://HOST:PORT` names one without a file, `radixgate init` writes a file"
        )
    yield from _discovery(settings)
    yield from _duplicate_names(settings)
    yield from _addresses_and_names(settings)
    yield from _listeners(settings)
    if settings.redis.url != "embedded" and (problem := redis_url_problem(settings.redis.url)) is not None:
        yield f"$.redis.url: {problem}"
    if settings.cells is not None:
        yield from cell_problems(settings.cells, settings.deployment_secret)
    if (problem := database_url_problem(settings.database.url)) is not None:
        yield f"$.database.url: {problem}"
    yield from _webhooks(settings)
    yield from _policies(settings)
    yield from _tokenizers(settings)


def _duplicate_names(settings: Settings) -> Iterator[str]:
    for path, given in (
        ("workers", [worker.id for worker in settings.workers]),
        ("plans", [plan.name for plan in settings.plans]),
        ("organisations", [organisation.id for organisation in settings.organisations]),
        ("tenants", [tenant.id for tenant in settings.tenants]),
        ("webhooks", [hook.id for hook in settings.webhooks]),
        ("models", [name for model in settings.models for name in (model.name, *model.aliases)]),
        ("authentication.tokens", [rules.issuer for rules in settings.authentication.tokens]),
        ("admin.issuers", [rules.issuer for rules in settings.admin.issuers]),
        ("tenants[].keys", [key.id for tenant in settings.tenants for key in tenant.keys]),
    ):
        seen: set[str] = set()
        for name in given:
            if name in seen:
                yield f"$.{path}: {name!r} is named twice"
            seen.add(name)


def _addresses_and_names(settings: Settings) -> Iterator[str]:
    for at, worker in enumerate(settings.workers):
        yield from worker_problems(worker, f"$.workers[{at}]")
    collector = settings.telemetry.otlp_endpoint
    if collector is not None and (problem := url_problem(collector)) is not None:
        yield f"$.telemetry.otlp_endpoint: {problem}"
    issuers: tuple[tuple[str, Sequence[IssuerSettings]], ...] = (
        ("authentication.tokens", settings.authentication.tokens),
        ("admin.issuers", settings.admin.issuers),
    )
    for place, many in issuers:
        for at, rules in enumerate(many):
            for name, url in (("issuer", rules.issuer), ("jwks_url", rules.jwks_url)):
                if url is not None and (problem := url_problem(url)) is not None:
                    yield f"$.{place}[{at}].{name}: {problem}"
    yield from _splits_and_fallbacks(settings)
    logins = [(at, rules.login) for at, rules in enumerate(settings.admin.issuers) if rules.login is not None]
    for at, login in logins:
        if login.url is not None and (problem := url_problem(login.url)) is not None:
            yield f"$.admin.issuers[{at}].login.url: {problem}"
    for at, _ in logins[1:]:
        yield f"$.admin.issuers[{at}].login: only one issuer can have the login of /ui"
    plans = {plan.name for plan in settings.plans}
    for at, tenant in enumerate(settings.tenants):
        if tenant.plan is not None and tenant.plan not in plans:
            yield f"$.tenants[{at}].plan: there is no plan {tenant.plan!r}"


def _splits_and_fallbacks(settings: Settings) -> Iterator[str]:
    """Yield errors in splits and fallbacks. Other names may be those of models found at workers later."""
    for at, model in enumerate(settings.models):
        if model.splits and not sum(model.splits.values()) > 0:
            yield f"$.models[{at}].splits: at least one weight has to be above 0"
        if model.name in model.fallbacks or set(model.aliases) & set(model.fallbacks):
            yield f"$.models[{at}].fallbacks: a model cannot be its own fallback"


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


def _no_disaggregation(kind: str) -> str:
    able = ", ".join(sorted(DISAGGREGATION_TRAITS))
    return f"workers of kind {kind!r} cannot serve disaggregated; these kinds can: {able}"


def _discovery(settings: Settings) -> Iterator[str]:
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


def _webhooks(settings: Settings) -> Iterator[str]:
    for at, hook in enumerate(settings.webhooks):
        if settings.database.url == NONE:
            yield f"$.webhooks[{at}]: webhooks need a database, which keeps events until they are delivered"
        if (problem := url_problem(hook.url)) is not None:
            yield f"$.webhooks[{at}].url: {problem}"
        if webhook_secret(hook.secret.reveal()) is None:
            yield f"$.webhooks[{at}].secret: expected whsec_ and 24 to 64 bytes in base64"


def _listeners(settings: Settings) -> Iterator[str]:
    listen, admin = settings.listen, settings.admin
    for name, token in (("token", admin.token), ("metrics_token", admin.metrics_token)):
        if token is not None and (problem := weak_token_problem(token.reveal())) is not None:
            yield f"$.admin.{name}: {problem}"
    picker = listen.endpoint_picker
    picker_tls = picker.tls if picker is not None else None
    for path, tls in (
        ("listen", listen.tls),
        ("admin", admin.tls),
        ("listen.endpoint_picker", picker_tls),
    ):
        for name in ("certificate", "key", "client_ca") if tls is not None else ():
            file = getattr(tls, name)
            if file is not None and not Path(file).is_file():
                yield f"$.{path}.tls.{name}: there is no file {file!r}"
    if listen.processes > 1 and listen.unix_socket is not None:
        yield "$.listen.processes: only one process can serve a unix socket"
    if listen.unix_socket is not None:
        if len(fsencode(listen.unix_socket)) > SOCKET_PATH_BYTES_MAX:
            yield f"$.listen.unix_socket: the path of a socket has at most {SOCKET_PATH_BYTES_MAX} bytes"
        return
    elsewhere = settings.tenant_objects is not None or _database_may_have_tenants(settings)
    if not settings.tenants and not is_loopback(listen.host) and not elsewhere:
        yield "$.tenants: at least one tenant is needed unless listen.host is a loopback address"
    if listen.port == admin.port != 0 and _overlap(listen.host, admin.host):
        yield f"$.admin.port: {admin.port} is already the port of listen, at the same address"


def _database_may_have_tenants(settings: Settings) -> bool:
    """Return whether a database may have tenants: a SQLite file that does not exist has none."""
    url = settings.database.url
    if url == NONE:
        return False
    file = sqlite_file(url, Path(settings.state_directory))
    return file is None or file.exists()


def _overlap(one: str, other: str) -> bool:
    """Return whether listeners at these two addresses would conflict on one port."""
    if one == other or "localhost" in (one, other):
        return is_loopback(one) == is_loopback(other) or _is_any_address(one) or _is_any_address(other)
    try:
        first, second = ip_address(one), ip_address(other)
    except ValueError:
        return False
    return first.version == second.version and (
        first.is_unspecified or second.is_unspecified or first == second
    )


def _is_any_address(host: str) -> bool:
    return host in ("0.0.0.0", "::")  # noqa: S104  # nosec B104


def _policies(settings: Settings) -> Iterator[str]:
    routing = settings.routing
    yield from _routing_policy(routing.policy, routing.options, "$.routing")
    if routing.shadow is not None:
        yield from _routing_policy(routing.shadow.policy, routing.shadow.options, "$.routing.shadow")
        if (routing.shadow.policy, routing.shadow.options) == (routing.policy, routing.options):
            yield "$.routing.shadow: is the same policy as routing.policy, with the same options"
    try:
        queue_policy(settings.queueing.across, settings.queueing.options)
    except OptionsInvalid as err:
        yield explain_error(err.message, err.options_type, {}, "$.queueing.options")
    except PolicyError as err:
        yield f"$.queueing.across: {err}"
    try:
        tenant_order(settings.queueing.within)
    except PolicyError as err:
        yield f"$.queueing.within: {err}"


def _routing_policy(name: str, options: dict[str, Any], path: str) -> Iterator[str]:
    try:
        routing_policy(name, options)
    except OptionsInvalid as err:
        yield explain_error(err.message, err.options_type, {}, f"{path}.options")
    except PolicyError as err:
        yield f"{path}.policy: {err}"


def _tokenizers(settings: Settings) -> Iterator[str]:
    for at, model in enumerate(settings.models):
        if model.tokenizer in TOKENIZER_KEYWORDS:
            continue
        if not (Path(model.tokenizer) / "tokenizer.json").is_file():
            hint = "" if Path(model.tokenizer).is_dir() else TOKENIZER_HINT
            yield f"$.models[{at}].tokenizer: there is no tokenizer.json in {model.tokenizer!r}{hint}"


def expired_keys(settings: Settings, now: float) -> Iterator[str]:
    """Yield a warning for each API key that has expired, as `$.path: reason`; `now` is Unix time."""
    for at, tenant in enumerate(settings.tenants):
        for number, key in enumerate(tenant.keys):
            if key.expires is not None and key.expires.seconds <= now:
                path = f"$.tenants[{at}].keys[{number}].expires"
                yield f"{path}: {key.expires} has passed; the key is refused"


def misspelt_variables(environment: Mapping[str, str], referred: Set[str]) -> Iterator[str]:
    """Yield a warning for each environment variable that looks like a misspelt setting.

    Variables in `referred` are skipped: settings refer to them by `${env:NAME}`.
    """
    right = {name.replace(".", "").replace("_", ""): name for name in setting_paths(Settings)}
    for name in sorted(environment):
        if not name.startswith(_PREFIX_START) or name.startswith(ENVIRONMENT_PREFIX) or name in referred:
            continue
        if _KUBERNETES_NAME.search(name) or _KUBERNETES_VALUE.match(environment[name]):
            continue
        meant = right.get(name.removeprefix(_PREFIX_START).replace("_", "").lower())
        hint = f"names of settings begin with {ENVIRONMENT_PREFIX}"
        if meant is not None:
            hint = f"write {ENVIRONMENT_PREFIX}{meant.replace('.', '__').upper()}"
        yield f"environment {name}: not a setting; {hint}"


def weak_token_problem(token: str) -> str | None:
    """Return why a token can be guessed; None if it is as strong as 128 random bits.

    Characters count as drawn at random from their alphabet, as in the output of `openssl rand -hex 16`.
    """
    bits = len(token) * log2(max(2, _alphabet_size(token)))
    if bits >= TOKEN_BITS_MIN and len(set(token)) >= TOKEN_DISTINCT_CHARACTERS_MIN:
        return None
    return "the token can be guessed: it needs 128 random bits (openssl rand -hex 16)"


def _alphabet_size(token: str) -> int:
    """Return the size of the smallest usual alphabet that has all characters of a token."""
    characters = set(token)
    if characters <= set("0123456789"):
        return 10
    if characters <= set("0123456789abcdef") or characters <= set("0123456789ABCDEF"):
        return 16
    size = 10 if characters & set("0123456789") else 0
    size += 26 if any("a" <= character <= "z" for character in characters) else 0
    size += 26 if any("A" <= character <= "Z" for character in characters) else 0
    return size + (2 if any(not character.isalnum() for character in characters) else 0)
