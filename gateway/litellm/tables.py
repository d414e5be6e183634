"""LiteLLM's tables: organisations, teams, budgets and keys, as they are stored.

    LiteLLM_OrganizationTable      organisation                 token = SHA-256 of the key, in hex: it is taken as
      LiteLLM_TeamTable            tenant, with a plan           `sha256:`, so that every client keeps its key
        LiteLLM_VerificationToken  key
      LiteLLM_BudgetTable          limits of whoever names it

Names of columns are those of its schema.prisma (version 1.106). An empty list of models means all of them there.
What restricts a key and cannot be carried over is listed; nothing is allowed here that was not allowed there by
models, addresses, expiry or blocking.
"""

import re
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any, Literal

import msgspec

from gateway.database.rows import StoredKey
from gateway.litellm.import_result import ImportResult, LitellmFormatError, Row, table_rows, unique_identifier
from gateway.settings.tenants import (
    ApiKeySettings,
    LimitSettings,
    ModelAccessSettings,
    OrganisationSettings,
    PlanSettings,
    TenantSettings,
)
from gateway.settings.types import Moment, Network

TABLES = (
    "LiteLLM_OrganizationTable",
    "LiteLLM_TeamTable",
    "LiteLLM_ProjectTable",
    "LiteLLM_BudgetTable",
    "LiteLLM_VerificationToken",
    "LiteLLM_DeprecatedVerificationToken",
)
DASHBOARD = "litellm-dashboard"
"""The team of keys that its user interface makes for those who log in."""

ALL_MODELS = {"all-proxy-models", "all-team-models", "*"}
NO_MODELS = "no-default-models"
LIMITED = ("model_max_budget", "budget_limits")
BUDGETS: dict[str, Literal["hour", "day", "week", "month"]] = {
    "1h": "hour",
    "1d": "day",
    "24h": "day",
    "7d": "week",
    "1w": "week",
    "30d": "month",
    "1mo": "month",
}
"""Durations whose resets are those of the calendar there, as get_next_standardized_reset_time has them."""
OTHER = (
    "permissions",
    "aliases",
    "config",
    "object_permission_id",
    "access_group_ids",
    "policies",
    "guardrails",
)
_DIGEST = re.compile(r"[0-9a-f]{64}")


def export_statement() -> str:
    """SQL that gives all of it as one JSON object, for psql -At."""
    parts = [
        f"'{name}', (SELECT coalesce(json_agg(row_to_json(t)), '[]') FROM \"{name}\" t)" for name in TABLES
    ]
    return "SELECT json_build_object(\n  " + ",\n  ".join(parts) + "\n);"


def read_tables(tables: Any, moved: ImportResult, now: float | None = None) -> None:
    """`tables`: rows by table. Names of models are understood as the config that was read before has them.

    Raises NotLitellm.
    """
    if not isinstance(tables, Mapping):
        raise LitellmFormatError("expected an object with a list of rows for each table")
    _Tables(tables, moved, time.time() if now is None else now).read()


class _Tables:
    def __init__(self, tables: Mapping[str, Any], moved: ImportResult, now: float) -> None:
        self._tables = tables
        self._moved = moved
        self._now = now
        self._models = moved.names()
        self._addresses = tuple(map(Network, moved.addresses))
        self._budgets = {row.get("budget_id"): row for row in table_rows(tables, "LiteLLM_BudgetTable")}
        self._projects = {row.get("project_id"): row for row in table_rows(tables, "LiteLLM_ProjectTable")}
        self._organisations: dict[Any, tuple[str, Row]] = {}
        self._teams: dict[Any, str] = {}
        self._owners: dict[Any, str] = {}

    def read(self) -> None:
        for row in table_rows(self._tables, "LiteLLM_OrganizationTable"):
            self._organisation(row)
        for row in table_rows(self._tables, "LiteLLM_TeamTable"):
            self._team(row)
        families: dict[str, str] = {}
        for row in table_rows(self._tables, "LiteLLM_VerificationToken"):
            self._key(row, families)
        for row in table_rows(self._tables, "LiteLLM_DeprecatedVerificationToken"):
            self._rotated(row, families)

    def _organisation(self, row: Row) -> None:
        moved = self._moved
        name = unique_identifier(
            row.get("organization_alias"), str(row.get("organization_id")), moved.organisations
        )
        limits, concurrency = self._limits(f"organisation {name}", row)
        moved.organisations[name] = OrganisationSettings(id=name, limits=limits, concurrency=concurrency)
        self._organisations[row.get("organization_id")] = name, row
        moved.leave(f"organisation {name}", row, *OTHER)

    def _team(self, row: Row) -> None:
        moved = self._moved
        name = unique_identifier(row.get("team_alias"), str(row.get("team_id")), moved.tenants)
        limits, concurrency = self._limits(f"team {name}", row)
        organisation, of_organisation = self._organisations.get(row.get("organization_id"), (None, {}))
        # Its organisation's models are the plan's: plan, tenant and key all have to allow a model.
        models = self._access(of_organisation.get("models"))
        plan = PlanSettings(name=f"litellm-{name}", limits=limits, concurrency=concurrency, models=models)
        moved.plans[plan.name] = plan
        moved.tenants[name] = TenantSettings(
            id=name,
            organisation=organisation,
            plan=plan.name,
            models=self._access(row.get("models")),
            addresses=self._addresses,
            disabled=bool(row.get("blocked")),
        )
        self._teams[row.get("team_id")] = name
        moved.leave(f"team {name}", row, *OTHER)

    def _key(self, row: Row, families: dict[str, str]) -> None:
        token = _digest(row.get("token"))
        if row.get("team_id") == DASHBOARD:
            return
        name = f"ll-{token[:16]}"
        where = f"key {row.get('key_alias') or row.get('key_name') or name}"
        tenant = self._tenant(row, where)
        if tenant is None:
            return
        limits, concurrency = self._limits(where, row)
        project = self._projects.get(row.get("project_id"), {})
        key = ApiKeySettings(
            id=name,
            hash=f"sha256:{token}",
            name=str(row.get("key_alias") or row.get("key_name") or "")[:200] or None,
            expires=_moment(row.get("expires")),
            scopes=("inference", "usage") if _infers(row.get("allowed_routes") or ()) else ("usage",),
            models=self._access(row.get("models"), project.get("models")),
            limits=limits,
            concurrency=concurrency,
            disabled=bool(row.get("blocked") or project.get("blocked")),
        )
        self._keep(tenant, key, row)
        families[token] = name
        self._moved.leave(where, row, *OTHER)
        self._moved.leave(
            where, row.get("metadata") or {}, "model_rpm_limit", "model_tpm_limit", "guardrails"
        )
        if project:
            self._moved.left.append(f"{where}: limits of its project {row.get('project_id')}")

    def _rotated(self, row: Row, families: Mapping[str, str]) -> None:
        """A key that was replaced, and is good until its grace period ends."""
        token, ends = _digest(row.get("token")), _moment(row.get("revoke_at"))
        successor = families.get(str(row.get("active_token_id")))
        found = next((stored for stored in self._moved.keys if stored.key.id == successor), None)
        if found is None or ends is None or ends.seconds <= self._now:
            return
        old = msgspec.structs.replace(
            found.key, id=f"ll-{token[:16]}", hash=f"sha256:{token}", expires=ends, family=found.key.id
        )
        self._moved.keys.append(msgspec.structs.replace(found, key=old))

    def _keep(self, tenant: str, key: ApiKeySettings, row: Row) -> None:
        created = _moment(row.get("created_at"))
        at = created.seconds if created is not None else self._now
        self._moved.keys.append(StoredKey(tenant=tenant, key=key, created=at))

    def _tenant(self, row: Row, where: str) -> str | None:
        """A key without a team belongs to its user, else to its organisation, else to all such keys together."""
        team = row.get("team_id")
        if team is not None:
            if team not in self._teams:
                self._moved.left.append(f"{where}: its team {team} is not there")
            return self._teams.get(team)
        owner = (row.get("organization_id"), row.get("user_id"))
        if owner not in self._owners:
            organisation, of_organisation = self._organisations.get(owner[0], (None, {}))
            name = unique_identifier(owner[1] or organisation, "litellm", self._moved.tenants)
            plan = PlanSettings(name=f"litellm-{name}", models=self._access(of_organisation.get("models")))
            self._moved.plans[plan.name] = plan
            self._moved.tenants[name] = TenantSettings(
                id=name, organisation=organisation, plan=plan.name, addresses=self._addresses
            )
            self._owners[owner] = name
        return self._owners[owner]

    def _limits(self, where: str, row: Row) -> tuple[tuple[LimitSettings, ...], int | None]:
        """Its own, else those of the budget that it names."""
        budget = self._budgets.get(row.get("budget_id"), {})

        def given(name: str) -> int | None:
            value = row.get(name) if row.get(name) is not None else budget.get(name)
            if value is not None and int(value) < 1:
                self._moved.left.append(f"{where}: {name} of {value}; it is 1 here")
            # Nothing at all is no limit that settings have; one a minute is as near as it gets.
            return max(1, int(value)) if value is not None else None

        limits = []
        if (requests := given("rpm_limit")) is not None:
            limits.append(LimitSettings(requests=requests))
        if (tokens := given("tpm_limit")) is not None:
            limits.append(LimitSettings(total_tokens=tokens))
        limits += self._budgets_of(where, row, budget)
        self._moved.leave(where, row, *LIMITED)
        self._moved.leave(where, budget, *LIMITED)
        return tuple(limits), given("max_parallel_requests")

    def _budgets_of(self, where: str, row: Row, budget: Row) -> list[LimitSettings]:
        """What may be spent; a budget that never begins anew is none that there is here."""
        found = []
        owner = row if row.get("max_budget") is not None or row.get("soft_budget") is not None else budget
        per = BUDGETS.get(str(owner.get("budget_duration")))
        if per is None:
            self._moved.leave(where, owner, "max_budget", "soft_budget", "budget_duration")
            return []
        for name, mode in (("max_budget", "enforce"), ("soft_budget", "soft")):
            if (amount := owner.get(name)) is not None and float(amount) > 0:
                money: Any = {"spend": max(1e-6, float(amount)), "mode": mode}
                found.append(LimitSettings(**money, per=per, reset="calendar"))
        if found and row.get("spend"):
            self._moved.left.append(f"{where}: spend of {row['spend']:g} in the period that runs")
        return found

    def _access(self, *levels: Sequence[str] | None) -> ModelAccessSettings:
        """What all of these lists allow; names of clients become the models' own."""
        allowed: set[str] | None = None
        for level in levels:
            if level and not ALL_MODELS.intersection(level):
                names = {self._models.get(name, name) for name in level if name != NO_MODELS}
                allowed = names if allowed is None else allowed & names
        return (
            ModelAccessSettings()
            if allowed is None
            else ModelAccessSettings(allow=tuple(sorted(map(_pattern, allowed))))
        )


def _pattern(name: str) -> str:
    """`*` means the same here; what else a pattern may have is meant as it is written."""
    return re.sub(r"([\[?])", r"[\1]", name)


def _infers(routes: Iterable[str]) -> bool:
    """May a key of these routes ask models? No routes: any."""
    names = list(routes)
    return not names or any(
        name in ("llm_api_routes", "openai_routes", "*") or "completions" in name for name in names
    )


def _digest(token: Any) -> str:
    """Of a key as it is stored; one that was stored as it is gets hashed. Raises NotLitellm."""
    if not isinstance(token, str) or not token:
        raise LitellmFormatError("LiteLLM_VerificationToken: a row without token")
    return token if _DIGEST.fullmatch(token) else sha256(token.encode()).hexdigest()


def _moment(text: Any) -> Moment | None:
    """Times without a zone are UTC there. Raises NotLitellm."""
    if text is None:
        return None
    try:
        found = datetime.fromisoformat(str(text))
    except ValueError:
        raise LitellmFormatError(f"{str(text)[:40]!r} is no time") from None
    return Moment.at((found if found.tzinfo is not None else found.replace(tzinfo=UTC)).timestamp())
