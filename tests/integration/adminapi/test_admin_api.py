"""/admin/v1: the rights of each role and the effects of each operation, on SQLite."""

import asyncio
import json
from contextlib import asynccontextmanager

import jsonschema
import pytest
from yarl import URL

from gateway.adminapi import openapi
from gateway.database import schema
from gateway.database.audit_log import chain_key
from gateway.database.tenant_store import TenantStore
from gateway.tenants.keys import pepper
from gateway.tenants.operator_lifecycle import OperatorLifecycle
from tests.conftest import SECRET
from tests.fakes.identity_provider import AUDIENCE, IdentityProvider
from tests.fakes.scripted_worker import ScriptedWorker


class Api:
    """A caller with the token of an operator of each role."""

    def __init__(self, running, tokens):
        self.running = running
        self.tokens = tokens

    async def __call__(self, method, path, body=None, *, role="owner", headers=(), **query):
        """(status, JSON, headers)."""
        token = {"Authorization": f"Bearer {self.tokens[role]}"} if role is not None else {}
        url = f"{self.running.admin}/admin/v1{path}"
        more = {"json": body} if body is not None else {}
        async with self.running.http.request(
            method, url, params=query, headers={**token, **dict(headers)}, **more
        ) as response:
            return response.status, await response.json(content_type=None), response.headers


@pytest.fixture
def api(gateway, tmp_path):
    @asynccontextmanager
    async def start(**settings):
        url = f"sqlite:///{tmp_path}/tenants.db"
        async with ScriptedWorker() as worker:
            async with gateway(worker, **{"database.url": url, **settings}) as running:
                ledger = running.here.gateway.records.ledger
                await schema.upgrade(ledger.database)
                life = OperatorLifecycle(
                    TenantStore(ledger.database, chain_key(SECRET.encode())), pepper(SECRET.encode())
                )
                roles = ("viewer", "operator", "owner")
                made = {role: (await life.create(role, role)).text for role in roles}
                yield Api(running, made)

    return start


async def test_a_tenant_with_its_plan_and_key_is_made_used_and_ended(api):
    async with api() as call:
        limits = {"limits": [{"requests": 60, "per": "minute"}], "weight": 2.5, "classes": ["code", "chat"]}
        assert (await call("PUT", "/plans/free", limits, role="operator"))[0] == 201
        shown = (await call("GET", "/plans/free", role="viewer"))[1]
        assert (shown["weight"], shown["classes"]) == (2.5, ["code", "chat"])
        assert (await call("PUT", "/tenants/new", {"plan": "free"}, role="operator"))[0] == 201
        asked = {"tenant": "new", "rules": {"name": "robot", "class": "code"}}
        status, made, _ = await call("POST", "/keys", asked, role="operator")
        assert status == 201
        running = call.running
        url = f"{running.url}/v1/models"
        header = {"Authorization": f"Bearer {made['key']}"}

        async def opens():
            async with running.http.get(url, headers=header) as response:
                return response.status

        while await opens() == 401:
            await asyncio.sleep(0.1)
        assert await opens() == 200
        status, page, _ = await call("GET", "/keys", role="viewer", tenant="new")
        (shown,) = page["data"]
        assert (shown["id"], shown["state"], shown["rules"]["name"]) == (made["id"], "active", "robot")
        assert shown["rules"]["class"] == "code"
        assert made["key"] not in json.dumps(page)
        status, shown, _ = await call("POST", f"/keys/{made['id']}/revoke", role="operator")
        assert (status, shown["state"]) == (200, "revoked")
        while await opens() == 200:
            await asyncio.sleep(0.1)
        assert await opens() == 401
        _, told, _ = await call("GET", "/audit", role="viewer", subject=made["id"])
        assert [(entry["action"], entry["who"][:9]) for entry in told["data"]] == [
            ("revoke", "operator:"),
            ("create", "operator:"),
        ]
        _, whole, _ = await call("GET", "/audit/verification", role="viewer")
        assert whole["broken"] is None


async def test_a_viewer_gets_what_is_left_of_a_tenants_limits(api):
    async with api(limits=[{"requests": 60, "per": "hour"}]) as call:
        async with call.running.chat() as response:
            assert response.status == 200
        await call.running.settled()
        status, found, _ = await call("GET", "/tenants/acme/limits", role="viewer")
        assert status == 200
        (limit,) = found["data"]
        assert (limit["scope"], limit["limit"], limit["remaining"]) == (
            "tenant:acme",
            "60 requests per hour",
            59,
        )
        assert limit["reset_seconds"] > 0
        assert (await call("GET", "/tenants/unknown/limits", role="viewer"))[0] == 404


async def test_a_repeated_put_changes_nothing_and_is_in_the_audit_log_once(api):
    async with api() as call:
        states = [await call("PUT", "/plans/p", {"concurrency": 2}) for _ in range(2)]
        assert [status for status, _, _ in states] == [201, 200]
        assert states[0][1] == states[1][1]
        assert states[0][2]["etag"] == states[1][2]["etag"]
        _, told, _ = await call("GET", "/audit", subject="p")
        assert len(told["data"]) == 1


async def test_a_change_is_made_to_the_state_that_was_seen(api):
    async with api() as call:
        _, _, first = await call("PUT", "/plans/p", {"concurrency": 2})
        seen = {"If-Match": first["etag"]}
        assert (await call("PUT", "/plans/p", {"concurrency": 3}, headers=seen))[0] == 200
        status, problem, _ = await call("PUT", "/plans/p", {"concurrency": 4}, headers=seen)
        assert (status, problem["status"]) == (412, 412)
        unseen = {"If-None-Match": "*"}
        assert (await call("PUT", "/plans/p", {}, headers=unseen))[0] == 412
        assert (await call("GET", "/plans/p"))[1]["concurrency"] == 3


async def test_many_keys_are_revoked_at_once_and_first_for_the_sake_of_looking(api):
    async with api() as call:
        await call("PUT", "/tenants/new", {})
        ids = [(await call("POST", "/keys", {"tenant": "new"}))[1]["id"] for _ in range(3)]
        _, tried, _ = await call("POST", "/keys/revoke", {"tenant": "new", "dry_run": True})
        assert (sorted(tried["ids"]), tried["dry_run"]) == (sorted(ids), True)
        _, page, _ = await call("GET", "/keys", tenant="new")
        assert {key["state"] for key in page["data"]} == {"active"}
        status, _, _ = await call("POST", "/keys/revoke", {"ids": [*ids, "none"]})
        assert status == 409
        _, done, _ = await call("POST", "/keys/revoke", {"ids": ids})
        assert sorted(done["ids"]) == sorted(ids)
        _, page, _ = await call("GET", "/keys", tenant="new")
        assert {key["state"] for key in page["data"]} == {"revoked"}


async def test_a_key_is_replaced_with_a_grace_period_and_ended_at_a_moment(api):
    async with api() as call:
        await call("PUT", "/tenants/new", {})
        _, old, _ = await call("POST", "/keys", {"tenant": "new"})
        status, made, _ = await call("POST", f"/keys/{old['id']}/rotate", {"grace_seconds": 60})
        assert (status, made["tenant"]) == (201, "new")
        _, shown, _ = await call("GET", f"/keys/{old['id']}")
        assert shown["rules"]["expires"] is not None
        end = {"expires": "2001-01-01"}
        _, ended, _ = await call("POST", f"/keys/{made['id']}/expire", end)
        assert ended["state"] == "ended"


@pytest.mark.parametrize(
    ("role", "method", "path", "status"),
    [
        (None, "GET", "/plans", 401),
        ("viewer", "GET", "/plans", 200),
        ("viewer", "PUT", "/plans/p", 403),
        ("operator", "PUT", "/plans/p", 201),
        ("operator", "GET", "/operators", 403),
        ("owner", "GET", "/operators", 200),
    ],
)
async def test_a_role_may_what_it_may(api, role, method, path, status):
    async with api(**{"admin.token": "7be41c0d9a5f4e3288c6d1b0f7a9e253"}) as call:
        found = await call(method, path, {} if method == "PUT" else None, role=role)
        assert found[0] == status


async def test_without_any_token_a_client_on_this_machine_may_only_read(api):
    async with api() as call:
        assert (await call("GET", "/plans", role=None))[0] == 200
        assert (await call("PUT", "/plans/p", {}, role=None))[0] == 403


async def test_a_token_that_is_revoked_or_wrong_opens_nothing(api):
    async with api(**{"authentication.failures_per_minute_max": "3"}) as call:
        _, page, _ = await call("GET", "/operators")
        viewer = next(each for each in page["data"] if each["name"] == "viewer")
        status, shown, _ = await call("POST", f"/operators/{viewer['id']}/revoke")
        assert (status, shown["active"]) == (200, False)
        assert (await call("GET", "/plans", role="viewer"))[0] == 401
        call.tokens["wrong"] = call.tokens["owner"][:-1] + "_"
        assert [(await call("GET", "/plans", role="wrong"))[0] for _ in range(3)] == [401, 401, 429]
        assert (await call("GET", "/plans", role="owner"))[0] == 200


async def test_a_token_of_an_identity_provider_opens_what_its_role_may(api):
    async with IdentityProvider() as provider:
        issuer = {
            "issuer": provider.issuer,
            "audiences": [AUDIENCE],
            "roles": {"sre": "operator", "all": "viewer"},
        }
        async with api(**{"admin.issuers": json.dumps([issuer])}) as call:
            for name, claims, (looks, changes) in (
                ("ada", {"roles": ["all", "sre"], "sub": "ada"}, (200, 201)),
                ("bob", {"roles": "all"}, (200, 403)),
                ("nobody", {"roles": ["king", "owner"]}, (401, 401)),
                ("elsewhere", {"roles": "sre", "aud": "other"}, (401, 401)),
                ("late", {"roles": "sre", "exp": 1}, (401, 401)),
            ):
                call.tokens[name] = provider.token(**claims)
                assert (await call("GET", "/plans", role=name))[0] == looks, name
                assert (await call("PUT", f"/plans/{name}", {}, role=name))[0] == changes, name
            _, told, _ = await call("GET", "/audit", subject="ada")
            assert told["data"][0]["who"] == "token:ada"


async def test_an_operator_is_made_and_works(api):
    async with api() as call:
        _, made, _ = await call("POST", "/operators", {"name": "ada", "role": "operator"})
        call.tokens["ada"] = made["token"]
        assert (await call("PUT", "/organisations/org", {}, role="ada"))[0] == 201
        _, told, _ = await call("GET", "/audit", subject="org")
        assert told["data"][0]["who"] == f"operator:{made['id']}"


async def test_a_mistake_is_answered_as_a_problem_of_rfc_9457(api):
    async with api() as call:
        for method, path, body, status, detail in (
            ("GET", "/plans/none", None, 404, "There is no plan 'none'."),
            ("GET", "/nothing", None, 404, "There is nothing at GET /admin/v1/nothing."),
            ("DELETE", "/plans", None, 405, "This path allows only the methods GET."),
            ("PUT", "/plans/p", {"concurency": 1}, 400, "$.concurency: unknown setting (did you mean"),
            ("PUT", "/plans/p", {"name": "q"}, 400, "$.name: the path says 'p'."),
            ("PUT", "/tenants/a", {"plan": "none"}, 409, "There is no plan 'none', neither in the"),
            (
                "PUT",
                "/tenants/a",
                {"keys": [{"id": "k", "hash": f"sha256:{1:064x}"}]},
                400,
                "$.keys: keys are",
            ),
            ("POST", "/keys", {"tenant": "nobody"}, 409, "There is no tenant 'nobody'."),
            (
                "POST",
                "/keys",
                {"tenant": "acme"},
                409,
                "The tenant 'acme' is in the settings file, which wins",
            ),
            (
                "POST",
                "/keys",
                {"tenant": "a", "rules": {"hash": "x"}},
                400,
                "$.rules.hash: the gateway makes this value itself",
            ),
            ("POST", "/keys/revoke", {}, 400, "Name keys (ids), or all keys of one tenant"),
        ):
            found, problem, headers = await call(method, path, body)
            assert (found, problem["status"], headers["content-type"]) == (
                *(status, status, "application/problem+json"),
            ), problem
            assert problem["detail"].startswith(detail), problem
            assert (problem["type"], problem["instance"]) == ("about:blank", f"/admin/v1{path}")
            assert problem["title"]
        for query in ({"limit": "0"}, {"before": "1"}, {"after": "a\x00"}):
            assert (await call("GET", "/keys", **query))[0] == 400
        for query in ({"by": "colour"}, {"since": "soon"}, {"tenant": "\x00"}, {"limit": "x"}, {"tag": "x"}):
            assert (await call("GET", "/usage", **query))[0] == 400
        large = {"models": {"allow": ["m" * 1000] * 300}}
        assert (await call("PUT", "/plans/p", large))[0] == 413
        url = f"{call.running.admin}/admin/v1/plans/p"
        header = {"Authorization": f"Bearer {call.tokens['owner']}"}
        async with call.running.http.put(url, data=b"{}", headers=header) as response:
            assert response.status == 415
        json_type = {**header, "Content-Type": "application/json", "Content-Encoding": "gzip"}
        async with call.running.http.put(url, data=b"{}", headers=json_type) as response:
            assert response.status == 415
        async with call.running.http.put(
            url, data=b"{}", headers={**json_type, "Content-Encoding": ""}
        ) as response:
            assert response.status == 201


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "/plans/%00", None, 404),
        ("PUT", "/plans/%00", {}, 404),
        ("PUT", "/plans/p%0A", {}, 404),
        ("PUT", "/tenants/acme%0A", {}, 404),
        ("POST", "/operators/%00/revoke", None, 404),
        ("PUT", "/plans/p", {"limits": [{"requests": 1, "models": ["a\x00"]}]}, 400),
        ("PUT", "/tenants/t", {"organisation": "acme\n"}, 400),
        ("PUT", "/tenants/t", {"plan": "p\x00"}, 400),
        ("POST", "/keys", {"tenant": "t\n"}, 400),
        ("POST", "/keys", {"tenant": "t", "rules": {"name": "a\x1b[31m"}}, 400),
        ("POST", "/keys/revoke", {"ids": ["\x00"]}, 400),
        ("POST", "/operators", {"name": "a\nb", "role": "viewer"}, 400),
    ],
    ids=lambda value: ascii(value)[:40],
)
async def test_names_with_control_characters_are_nobodys(api, method, path, body, status):
    async with api() as call:
        async with call.running.http.request(
            method,
            URL(f"{call.running.admin}/admin/v1{path}", encoded=True),
            json=body,
            headers={"Authorization": f"Bearer {call.tokens['owner']}"},
        ) as response:
            assert response.status == status, await response.text()


async def test_lists_come_page_by_page(api):
    async with api() as call:
        for name in ("a", "b", "c"):
            await call("PUT", f"/plans/{name}", {})
        _, first, _ = await call("GET", "/plans", limit="2")
        _, second, _ = await call("GET", "/plans", limit="2", after=first["next"])
        assert [plan["name"] for plan in (*first["data"], *second["data"])] == ["a", "b", "c"]
        assert second["next"] is None


async def test_usage_is_everybodys_for_operators_and_ones_own_for_tenants(api):
    async with api() as call:
        running = call.running
        for tenant in ("acme", "acme", "globex"):
            async with running.chat(tenant=tenant, user="ada", metadata={"team": "red"}) as response:
                assert response.status == 200
        await running.here.gateway.records.ledger.shipper.ship()
        _, found, _ = await call("GET", "/usage", by="tenant,worker")
        assert [(g["tenant"], g["worker"], g["requests"]) for g in found["data"]] == [
            ("acme", "w0", 2),
            ("globex", "w0", 1),
        ]

        async def own(**query):
            url = f"{running.url}/v1/usage"
            async with running.http.get(url, params=query, headers=running.headers("acme")) as response:
                return response.status, await response.json()

        status, found = await own(by="user,tag:team")
        (group,) = found["data"]
        assert (status, group["user"], group["tag:team"], group["requests"]) == (200, "ada", "red", 2)
        assert (group["prompt_tokens"], group["output_tokens"]) == (20, 8)
        assert "worker" not in json.dumps(found)
        for query in ({"by": "worker"}, {"worker": "w0"}, {"tenant": "globex"}, {"by": "tenant"}):
            status, refusal = await own(**query)
            assert (status, refusal["error"]["code"]) == (400, "invalid_request")


async def test_a_key_without_the_scope_reads_no_usage(gateway, tmp_path):
    tenants = {"acme": {"key": {"scopes": ["inference"]}}}
    async with ScriptedWorker() as worker, gateway(worker, tenants=tenants) as running:
        url = f"{running.url}/v1/usage"
        async with running.http.get(url, headers=running.headers()) as response:
            assert (response.status, (await response.json())["error"]["code"]) == (403, "scope_not_allowed")


async def test_every_operation_of_the_document_exists(api):
    async with api() as call:
        status, document, _ = await call("GET", "/openapi.json", role="viewer")
        assert (status, document["openapi"]) == (200, "3.1.0")
        for path, operations in document["paths"].items():
            for method, operation in operations.items():
                # Whatever is documented is there: without a token it refuses, and does not say 404.
                asked = path.removeprefix(openapi.BASE).replace("{id}", "x").replace("{name}", "x")
                token = {"Authorization": "Bearer nonsense"}
                found, _, _ = await call(method.upper(), asked, role=None, headers=token)
                assert found in (401, 429), (method, path)
                for answer in operation["responses"].values():
                    assert "$ref" in answer or "content" in answer
        for name, schema in document["components"]["schemas"].items():
            jsonschema.Draft202012Validator.check_schema(schema)
            assert "description" in schema or name.startswith(("Keys", "Limit"))
        _, plan, _ = await call("PUT", "/plans/p", {"concurrency": 2})
        resolver = {"$ref": "#/components/schemas/PlanSettings", "components": document["components"]}
        jsonschema.validate(plan, resolver)


async def test_without_a_database_the_answer_names_what_is_missing(gateway):
    async with ScriptedWorker() as worker, gateway(worker, **{"database.url": "none"}) as running:
        async with running.http.get(f"{running.admin}/admin/v1/plans") as response:
            assert response.status == 404
            assert "settings file only" in (await response.json(content_type=None))["detail"]
        async with running.http.get(f"{running.url}/v1/usage", headers=running.headers()) as response:
            assert response.status == 404


async def test_queues_have_the_form_of_the_document(api):
    async with api() as call:
        _, document, _ = await call("GET", "/openapi.json", role="viewer")
        status, found, _ = await call("GET", "/queue", role="viewer")
        assert status == 200
        operation = document["paths"]["/admin/v1/queue"]["get"]
        schema = operation["responses"]["200"]["content"]["application/json"]["schema"]
        jsonschema.validate(found, {**schema, "components": document["components"]})
        assert (found["gateways"], len(found["answered"])) == (1, 1)
