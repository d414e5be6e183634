"""Reads organisations, teams, budgets and keys from the tables of LiteLLM's database.

    LiteLLM_OrganizationTable      organisation                 token = SHA-256 of the key, in hex: imported as
      LiteLLM_TeamTable            tenant, with a plan           `sha256:`, so that every client keeps its key
        LiteLLM_VerificationToken  key
      LiteLLM_BudgetTable          limits of all rows that name it

Names of columns are those of LiteLLM's schema.prisma (version 1.106). In LiteLLM an empty list of models means all
models. Restrictions of a key that cannot be imported are listed. Models, addresses, expiry and blocking never allow
more after the import than before.
"""

import re
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any, Literal

import msgspec

from gateway.database.row_conversion import StoredKey
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
"""The team of the keys that LiteLLM's user interface creates at each login."""

ALL_MODELS = {"all-proxy-models", "all-team-models", "*"}
NO_MODELS = "no-default-models"
NOT_IMPORTED_LIMITS = ("model_max_budget", "budget_limits")
BUDGETS: dict[str, Literal["hour", "day", "week", "month"]] = {
    "1h": "hour",
    "1d": "day",
    "24h": "day",
    "7d": "week",
    "1w": "week",
    "30d": "month",
    "1mo": "month",
}
"""Budget durations that LiteLLM resets by the calendar (get_next_standardized_reset_time), as periods of limits."""

NOT_IMPORTED = (
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
    """Return a SQL statement that exports all tables as one JSON object, for psql -At."""
    parts = [
        f"'{name}', (SELECT coalesce(json_agg(row_to_json(t)), '[]') FROM \"{name}\" t)"  # nosec B608
        for name in TABLES
    ]
    return "SELECT json_build_object(\n  " + ",\n  ".join(parts) + "\n);"


def read_tables(tables: Any, result: ImportResult, now: float | None = None) -> None:
    """Read the tables into the result.

    Args:
        tables: lists of rows by the name of the table.
        result: the result, which has the models of the config already; the tables refer to their names.
        now: Unix time; by default the current time.

    Raises:
        LitellmFormatError: the tables are not in the format of LiteLLM.
    """
    if not isinstance(tables, Mapping):
        raise LitellmFormatError("expected an object with a list of rows for each table")
    _TableReader(tables, result, time.time() if now is None else now).read()


class _TableReader:
    """Reads the rows of all tables into the result."""

    def __init__(self, tables: Mapping[str, Any], result: ImportResult, now: float) -> None:
        self._tables = tables
        self._result = result
        self._now = now
        self._models = result.model_names()
        self._addresses = tuple(map(Network, result.addresses))
        self._budgets = {row.get("budget_id"): row for row in table_rows(tables, "LiteLLM_BudgetTable")}
        self._projects = {row.get("project_id"): row for row in table_rows(tables, "LiteLLM_ProjectTable")}
        self._organisations: dict[Any, tuple[str, Row]] = {}
        self._teams: dict[Any, str] = {}
        self._owners: dict[Any, str] = {}

    def read(self) -> None:
        """Read organisations, teams and keys, in this order. Raises LitellmFormatError."""
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
        result = self._result
        name = unique_identifier(
            row.get("organization_alias"), str(row.get("organization_id")), result.organisations
        )
        limits, concurrency = self._limits(f"organisation {name}", row)
        result.organisations[name] = OrganisationSettings(id=name, limits=limits, concurrency=concurrency)
        self._organisations[row.get("organization_id")] = name, row
        result.note_not_imported(f"organisation {name}", row, *NOT_IMPORTED)

    def _team(self, row: Row) -> None:
        result = self._result
        name = unique_identifier(row.get("team_alias"), str(row.get("team_id")), result.tenants)
        limits, concurrency = self._limits(f"team {name}", row)
        organisation, of_organisation = self._organisations.get(row.get("organization_id"), (None, {}))
        # The models of the organisation become those of the plan: plan, tenant and key all have to allow a model.
        models = self._access(of_organisation.get("models"))
        plan = PlanSettings(name=f"litellm-{name}", limits=limits, concurrency=concurrency, models=models)
        result.plans[plan.name] = plan
        result.tenants[name] = TenantSettings(
            id=name,
            organisation=organisation,
            plan=plan.name,
            models=self._access(row.get("models")),
            addresses=self._addresses,
            disabled=bool(row.get("blocked")),
        )
        self._teams[row.get("team_id")] = name
        result.note_not_imported(f"team {name}", row, *NOT_IMPORTED)

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
            scopes=("inference", "usage")
            if _allows_inference(row.get("allowed_routes") or ())
            else ("usage",),
            models=self._access(row.get("models"), project.get("models")),
            limits=limits,
            concurrency=concurrency,
            disabled=bool(row.get("blocked") or project.get("blocked")),
        )
        self._keep(tenant, key, row)
        families[token] = name
        self._result.note_not_imported(where, row, *NOT_IMPORTED)
        self._result.note_not_imported(
            where, row.get("metadata") or {}, "model_rpm_limit", "model_tpm_limit", "guardrails"
        )
        if project:
            self._result.not_imported.append(f"{where}: limits of its project {row.get('project_id')}")

    def _rotated(self, row: Row, families: Mapping[str, str]) -> None:
        """Import a key that was replaced and is valid until its grace period ends."""
        token, ends = _digest(row.get("token")), _moment(row.get("revoke_at"))
        successor = families.get(str(row.get("active_token_id")))
        found = next((stored for stored in self._result.keys if stored.key.id == successor), None)
        if found is None or ends is None or ends.seconds <= self._now:
            return
        old = msgspec.structs.replace(
            found.key, id=f"ll-{token[:16]}", hash=f"sha256:{token}", expires=ends, family=found.key.id
        )
        self._result.keys.append(msgspec.structs.replace(found, key=old))

    def _keep(self, tenant: str, key: ApiKeySettings, row: Row) -> None:
        created = _moment(row.get("created_at"))
        at = created.seconds if created is not None else self._now
        self._result.keys.append(StoredKey(tenant=tenant, key=key, created=at))

    def _tenant(self, row: Row, where: str) -> str | None:
        """Return the tenant of a key: its team, its user, its organisation, or one for all other keys."""
        team = row.get("team_id")
        if team is not None:
            if team not in self._teams:
                self._result.not_imported.append(f"{where}: its team {team} does not exist")
            return self._teams.get(team)
        owner = (row.get("organization_id"), row.get("user_id"))
        if owner not in self._owners:
            organisation, of_organisation = self._organisations.get(owner[0], (None, {}))
            name = unique_identifier(owner[1] or organisation, "litellm", self._result.tenants)
            plan = PlanSettings(name=f"litellm-{name}", models=self._access(of_organisation.get("models")))
            self._result.plans[plan.name] = plan
            self._result.tenants[name] = TenantSettings(
                id=name, organisation=organisation, plan=plan.name, addresses=self._addresses
            )
            self._owners[owner] = name
        return self._owners[owner]

    def _limits(self, where: str, row: Row) -> tuple[tuple[LimitSettings, ...], int | None]:
        """Return limits and concurrency of a row, its own or those of the budget that it names."""
        budget = self._budgets.get(row.get("budget_id"), {})

        def given(name: str) -> int | None:
            value = row.get(name) if row.get(name) is not None else budget.get(name)
            if value is not None and int(value) < 1:
                self._result.not_imported.append(f"{where}: {name} of {value}; it is imported as 1")
            # Settings have no limit of zero; one per minute is the nearest.
            return max(1, int(value)) if value is not None else None

        limits = []
        if (requests := given("rpm_limit")) is not None:
            limits.append(LimitSettings(requests=requests))
        if (tokens := given("tpm_limit")) is not None:
            limits.append(LimitSettings(total_tokens=tokens))
        limits += self._budgets_of(where, row, budget)
        self._result.note_not_imported(where, row, *NOT_IMPORTED_LIMITS)
        self._result.note_not_imported(where, budget, *NOT_IMPORTED_LIMITS)
        return tuple(limits), given("max_parallel_requests")

    def _budgets_of(self, where: str, row: Row, budget: Row) -> list[LimitSettings]:
        """Return the budgets of a row as limits; budgets without a reset cannot be imported."""
        found = []
        owner = row if row.get("max_budget") is not None or row.get("soft_budget") is not None else budget
        per = BUDGETS.get(str(owner.get("budget_duration")))
        if per is None:
            self._result.note_not_imported(where, owner, "max_budget", "soft_budget", "budget_duration")
            return []
        for name, mode in (("max_budget", "enforce"), ("soft_budget", "soft")):
            if (amount := owner.get(name)) is not None and float(amount) > 0:
                money: Any = {"spend": max(1e-6, float(amount)), "mode": mode}
                found.append(LimitSettings(**money, per=per, reset="calendar"))
        if found and row.get("spend"):
            self._result.not_imported.append(f"{where}: spend of {row['spend']:g} in the current period")
        return found

    def _access(self, *levels: Sequence[str] | None) -> ModelAccessSettings:
        """Return the models that all of these lists allow, by the models' own names."""
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
    """Return a pattern for a name: `*` keeps its meaning, other special characters are escaped."""
    return re.sub(r"([\[?])", r"[\1]", name)


def _allows_inference(routes: Iterable[str]) -> bool:
    """Return whether a key with these routes may call models; no routes allow all."""
    names = list(routes)
    return not names or any(
        name in ("llm_api_routes", "openai_routes", "*") or "completions" in name for name in names
    )


def _digest(token: Any) -> str:
    """Return the SHA-256 of a key in hex; keys stored in plain text are hashed. Raises LitellmFormatError."""
    if not isinstance(token, str) or not token:
        raise LitellmFormatError("LiteLLM_VerificationToken: a row has no token")
    return token if _DIGEST.fullmatch(token) else sha256(token.encode()).hexdigest()


def _moment(text: Any) -> Moment | None:
    """Parse a time, which is UTC if it has no zone. Raises LitellmFormatError."""
    if text is None:
        return None
    try:
        found = datetime.fromisoformat(str(text))
    except ValueError:
        raise LitellmFormatError(f"{str(text)[:40]!r} is not a time") from None
    return Moment.at((found if found.tzinfo is not None else found.replace(tzinfo=UTC)).timestamp())
