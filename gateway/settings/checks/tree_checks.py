"""Checks of the whole settings tree: dependencies between settings, and probable mistakes."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from gateway.settings.checks.listener_checks import listener_problems
from gateway.settings.checks.worker_checks import discovery_problems, worker_problems
from gateway.settings.database_address import NONE, database_url_problem
from gateway.settings.error_messages import explain_error
from gateway.settings.models import TOKENIZER_KEYWORDS
from gateway.settings.redis_address import redis_url_problem
from gateway.settings.stores import CellSettings
from gateway.settings.token_issuers import IssuerSettings
from gateway.settings.tree import Settings
from gateway.settings.types import Secret
from gateway.settings.urls import credentials_problem, url_problem
from gateway.settings.usage import webhook_secret
from policies.registry import OptionsInvalid, PolicyError, queue_policy, routing_policy, tenant_order

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
    yield from discovery_problems(settings)
    yield from _duplicate_names(settings)
    yield from _addresses_and_names(settings)
    yield from listener_problems(settings)
    yield from _stores(settings)
    yield from _webhooks(settings)
    yield from _policies(settings)
    yield from _tokenizers(settings)


def _stores(settings: Settings) -> Iterator[str]:
    if settings.redis.url != "embedded" and (problem := redis_url_problem(settings.redis.url)) is not None:
        yield f"$.redis.url: {problem}"
    if settings.cells is not None:
        yield from _cells(settings.cells, settings.deployment_secret)
    if (problem := database_url_problem(settings.database.url)) is not None:
        yield f"$.database.url: {problem}"


def _cells(cells: CellSettings, deployment_secret: Secret | None) -> Iterator[str]:
    if cells.redis_url == "embedded":
        yield "$.cells.redis_url: expected the address of a Redis that the gateways of all cells reach"
    elif (problem := redis_url_problem(cells.redis_url)) is not None:
        yield f"$.cells.redis_url: {problem}"
    if (problem := url_problem(cells.url) or credentials_problem(cells.url)) is not None:
        yield f"$.cells.url: {problem}"
    if deployment_secret is None:
        yield "$.deployment_secret: the gateways of all cells need the same one"


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


def _webhooks(settings: Settings) -> Iterator[str]:
    for at, hook in enumerate(settings.webhooks):
        if settings.database.url == NONE:
            yield f"$.webhooks[{at}]: webhooks need a database, which keeps events until they are delivered"
        if (problem := url_problem(hook.url)) is not None:
            yield f"$.webhooks[{at}].url: {problem}"
        if webhook_secret(hook.secret.reveal()) is None:
            yield f"$.webhooks[{at}].secret: expected whsec_ and 24 to 64 bytes in base64"


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
