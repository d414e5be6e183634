"""TokenVerifier with a real identity provider: accepted and refused tokens, and changes of its keys."""

import asyncio
import base64
import json
import time
from contextlib import suppress

import aiohttp
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from gateway.settings.token_issuers import TenantIssuerSettings
from gateway.tenants import token_issuer as issuer_module
from gateway.tenants import token_verifier as tokens_module
from gateway.tenants.token_errors import IssuerUnavailable, NoTenantNamed, TokenInvalid
from gateway.tenants.token_issuer import Issuer
from gateway.tenants.token_verifier import TokenVerifier
from tests.fakes.clock import FakeClock
from tests.fakes.identity_provider import AUDIENCE, IdentityProvider
from tests.fakes.scripted_worker import ScriptedWorker

ALGORITHMS = ("RS256", "PS384", "ES256", "ES384", "ES512", "EdDSA")


@pytest.fixture
async def provider():
    async with IdentityProvider() as running:
        yield running


@pytest.fixture
async def http():
    async with aiohttp.ClientSession() as session:
        yield session


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def tokens(provider, http, clock):
    """Makes the gateway's side: `tokens(tenant_claim=...)`."""

    def make(**rules):
        settings = TenantIssuerSettings(issuer=provider.issuer, audiences=(AUDIENCE,), **rules)
        return TokenVerifier([Issuer(settings, http, clock)])

    return make


async def refusal(at, token):
    with pytest.raises(TokenInvalid) as refused:
        await at.identity(token)
    return str(refused.value)


async def test_a_good_token_names_its_tenant_and_lets_in_for_usual_things(provider, tokens):
    found = await tokens().identity(provider.token(tenant="globex"))
    assert (found.tenant, found.organisation) == ("globex", None)
    assert (found.rules.id, found.rules.scopes) == ("token-somebody", ("inference", "usage"))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
async def test_every_kind_of_signature_that_is_allowed_is_verified(http, algorithm):
    async with IdentityProvider(algorithm) as provider:
        rules = TenantIssuerSettings(issuer=provider.issuer, audiences=(AUDIENCE,), algorithms=(algorithm,))
        at = TokenVerifier([Issuer(rules, http)])
        assert (await at.identity(provider.token())).tenant == "acme"
        head, payload, signature = provider.token(sub="other").split(".")
        forged = signature[:-8] + ("AAAAAAAA" if signature[-8:] != "AAAAAAAA" else "BBBBBBBB")
        assert await refusal(at, f"{head}.{payload}.{forged}") == "its signature is wrong"


@pytest.mark.parametrize(
    ("claims", "reason"),
    [
        ({"aud": "another"}, "it is not for this service"),
        ({"aud": None}, "a claim is missing"),
        ({"exp": None}, "a claim is missing"),
        ({"exp": 1}, "it has expired"),
        ({"nbf": time.time() + 86_400}, "it is not valid yet"),
        ({"iat": time.time() + 86_400}, "it is not valid yet"),
        ({"exp": "soon"}, "its signature is wrong"),
    ],
)
async def test_a_token_that_is_not_good_now_and_here_is_refused_with_the_reason(
    provider, tokens, claims, reason
):
    assert await refusal(tokens(), provider.token(**claims)) == reason


async def test_clocks_may_be_apart_by_the_leeway_and_no_more(provider, tokens):
    at = tokens(leeway_seconds=30)
    assert await at.identity(provider.token(exp=time.time() - 20)) is not None
    assert await refusal(at, provider.token(exp=time.time() - 40)) == "it has expired"


async def test_a_token_of_another_issuer_is_no_token_here(provider, tokens):
    assert await tokens().identity(provider.token(iss="https://elsewhere")) is None
    assert await tokens().identity(provider.token(iss=None)) is None
    assert provider.asked == 0


@pytest.mark.parametrize(
    "presented",
    [None, "", "rg-x", "a.b.c", "..", "eyJ.eyJ.x", "x" * 20_000, "\udcff.\udcff.\udcff", "e30.e30."],
)
async def test_what_is_no_token_is_left_to_the_keys(provider, tokens, presented):
    assert await tokens().identity(presented) is None


def unsigned(claims, header):
    def part(value):
        return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()

    return f"{part(header)}.{part(claims)}."


def said(provider):
    return {"iss": provider.issuer, "aud": AUDIENCE, "exp": time.time() + 60, "tenant": "acme"}


@pytest.mark.parametrize("none", ["none", "None", "NONE", "", None])
async def test_a_token_without_a_signature_is_refused(provider, tokens, none):
    at = tokens()
    with pytest.raises(TokenInvalid):
        await at.identity(unsigned(said(provider), {"alg": none, "kid": "first"}))


async def test_a_public_key_is_no_secret_of_an_hmac(http):
    """The classic: the token says HS256, and is signed with the public key."""
    async with IdentityProvider("RS256") as provider:
        public = provider.keys["first"].public_key()
        pem = public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        forged = jwt.api_jws.PyJWS(options={"enforce_minimum_key_length": False})
        forged._algorithms["HS256"].prepare_key = lambda key: key
        token = forged.encode(
            json.dumps(said(provider)).encode(), pem, algorithm="HS256", headers={"kid": "first"}
        )
        at = TokenVerifier(
            [Issuer(TenantIssuerSettings(issuer=provider.issuer, audiences=(AUDIENCE,)), http)]
        )
        assert await refusal(at, token) == "its signature is of a kind that is not accepted"


async def test_settings_cannot_name_an_unsigned_or_symmetric_algorithm(provider):
    import msgspec

    for name in ("none", "HS256", "HS512"):
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert(
                {"issuer": "https://a", "audiences": ["b"], "algorithms": [name]}, TenantIssuerSettings
            )


async def test_an_algorithm_that_is_not_listed_is_refused_though_the_key_fits(http):
    async with IdentityProvider("RS256") as provider:
        rules = TenantIssuerSettings(issuer=provider.issuer, audiences=(AUDIENCE,), algorithms=("PS256",))
        at = TokenVerifier([Issuer(rules, http)])
        assert await refusal(at, provider.token()) == "its signature is of a kind that is not accepted"


async def test_a_key_signs_with_its_own_algorithm_only(http):
    async with IdentityProvider("RS256") as provider:
        rules = TenantIssuerSettings(
            issuer=provider.issuer, audiences=(AUDIENCE,), algorithms=("RS256", "PS256")
        )
        at = TokenVerifier([Issuer(rules, http)])
        provider.algorithm = "PS256"
        assert await refusal(at, provider.token()) == "its key is not known"


async def test_a_header_that_demands_what_is_not_understood_is_refused(provider, tokens):
    token = provider.token({"crit": ["b"], "b": 1})
    with suppress(TokenInvalid):
        assert await tokens().identity(token) is None


async def test_another_key_under_the_same_name_opens_nothing(provider, tokens):
    at = tokens()
    assert await at.identity(provider.token()) is not None
    provider.rotate("first")
    provider.shown.clear()
    assert await refusal(at, provider.token()) == "its signature is wrong"


async def test_a_rotated_key_is_read_when_it_is_first_met(provider, tokens, clock):
    at = tokens()
    before = provider.token()
    assert await at.identity(before) is not None
    clock.advance(issuer_module.REREAD_SECONDS)
    provider.rotate("second")
    assert await at.identity(provider.token()) is not None
    assert await at.identity(before) is not None
    assert provider.asked == 2


async def test_a_key_that_is_withdrawn_opens_nothing_any_more_not_even_what_it_opened(provider, tokens):
    at = tokens()
    before = provider.token()
    assert await at.identity(before) is not None
    provider.rotate("second", keep=False)
    (issuer,) = at._issuers.values()
    await issuer.refresh()
    assert await refusal(at, before) == "its key is not known"
    assert await at.identity(provider.token()) is not None


async def test_a_storm_of_unknown_keys_costs_the_issuer_one_question(provider, tokens, clock):
    at = tokens()
    assert await at.identity(provider.token()) is not None
    clock.advance(issuer_module.REREAD_SECONDS)

    async def attempt(number):
        with pytest.raises(TokenInvalid):
            await at.identity(provider.token({"kid": f"made up {number}"}))

    await asyncio.gather(*(attempt(number) for number in range(300)))
    for number in range(300):
        await attempt(1000 + number)
    assert provider.asked == 2
    assert len(at) == 1


async def test_the_first_requests_wait_for_one_answer_of_the_issuer(provider, tokens):
    at = tokens()
    found = await asyncio.gather(*(at.identity(provider.token(sub=f"s{n}")) for n in range(50)))
    assert all(identity is not None for identity in found)
    assert provider.asked == 1


async def test_an_issuer_that_never_answered_is_no_reason_to_call_a_token_wrong(provider, tokens, clock):
    provider.up = False
    at = tokens()
    with pytest.raises(IssuerUnavailable):
        await at.identity(provider.token())
    provider.up = True
    clock.advance(issuer_module.REREAD_SECONDS)
    assert await at.identity(provider.token()) is not None


async def test_known_keys_outlive_an_outage_for_the_time_of_the_settings(provider, tokens, clock):
    at = tokens(refresh_seconds=100, known_keys_seconds_max=1000)
    token = provider.token()
    assert await at.identity(token) is not None
    provider.up = False
    clock.advance(1100)
    assert await at.identity(token) is not None
    assert await at.identity(provider.token(sub="new")) is not None
    clock.advance(1)
    for late in (token, provider.token(sub="newer")):
        with pytest.raises(IssuerUnavailable):
            await at.identity(late)


@pytest.mark.parametrize(
    "document",
    [
        b"", b"{}", b"[]", b'{"keys": 5}', b'{"keys": []}', b'{"keys": [{"kty": "oct", "k": "AAAA"}]}',
        b'{"keys": [{"kty": "RSA"}, {"kty": "EC", "crv": "P-256", "x": "A", "y": "B"}, {}]}',
        b"[" * 100_000, b"x" * (issuer_module.DOCUMENT_BYTES_MAX + 1),
    ],
)  # fmt: skip
async def test_a_document_that_is_no_set_of_keys_is_an_outage(provider, tokens, document):
    provider.document = document
    with pytest.raises(IssuerUnavailable):
        await tokens().identity(provider.token())


async def test_weak_keys_and_keys_for_other_ends_are_not_used(http):
    async with IdentityProvider("RS256") as provider:
        weak = rsa.generate_private_key(public_exponent=65537, key_size=1024)
        shown = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(weak.public_key()))
        provider.shown["weak"] = {**shown, "kid": "weak"}
        provider.shown["first"]["use"] = "enc"
        provider.rotate("second")
        at = TokenVerifier(
            [Issuer(TenantIssuerSettings(issuer=provider.issuer, audiences=(AUDIENCE,)), http)]
        )
        assert await at.identity(provider.token()) is not None
        provider.signs_with = "first"
        assert await refusal(at, provider.token()) == "its key is not known"


async def test_a_token_that_names_no_key_is_verified_with_the_only_one_there_is(provider, tokens, clock):
    at = tokens()
    assert await at.identity(provider.token({"kid": None})) is not None
    clock.advance(issuer_module.REREAD_SECONDS)
    provider.rotate("second")
    (issuer,) = at._issuers.values()
    await issuer.refresh()
    assert await refusal(at, provider.token({"kid": None})) == "its key is not known"


async def test_an_issuer_that_calls_itself_otherwise_is_not_believed(provider, tokens):
    provider.describes = False
    with pytest.raises(IssuerUnavailable):
        await tokens().identity(provider.token())
    assert await tokens(jwks_url=f"{provider.issuer}/keys").identity(provider.token()) is not None


@pytest.mark.parametrize(
    ("rules", "claims", "tenant"),
    [
        ({}, {"tenant": ["acme"]}, "acme"),
        ({"tenant_claim": "https://example.com/tenant"}, {"https://example.com/tenant": "globex"}, "globex"),
        ({"tenant_claim": "a.b"}, {"a": {"b": "globex"}}, "globex"),
        ({"tenant_claim": "a.b"}, {"a.b": "globex", "a": {"b": "acme"}}, "globex"),
        ({"tenant_claim": "groups", "tenants": {"g1": "acme"}}, {"groups": ["x", "g1"]}, "acme"),
        ({"tenant_claim": "groups", "tenants": {"g1": "acme", "g2": "acme"}}, {"groups": ["g1", "g2"]}, "acme"),
    ],
)  # fmt: skip
async def test_the_tenant_is_found_in_the_claim_that_the_settings_name(
    provider, tokens, rules, claims, tenant
):
    assert (await tokens(**rules).identity(provider.token(**claims))).tenant == tenant


@pytest.mark.parametrize(
    ("rules", "claims"),
    [
        ({}, {"tenant": None}),
        ({}, {"tenant": 5}),
        ({}, {"tenant": []}),
        ({}, {"tenant": ["acme", "globex"]}),
        ({"tenants": {"g1": "acme"}}, {"tenant": "acme"}),
        ({"tenant_claim": "groups", "tenants": {"g1": "acme", "g2": "globex"}}, {"groups": ["g1", "g2"]}),
        ({"organisation_claim": "org"}, {}),
    ],
)
async def test_a_token_that_names_no_tenant_or_several_names_none(provider, tokens, rules, claims):
    with pytest.raises(NoTenantNamed):
        await tokens(**rules).identity(provider.token(**claims))


@pytest.mark.parametrize(
    ("rules", "claims", "scopes"),
    [
        ({"scope_claim": "scope"}, {"scope": "openid usage"}, ("usage",)),
        ({"scope_claim": "scope"}, {}, ()),
        ({"scope_claim": "roles", "scopes": {"llm": "inference"}}, {"roles": ["llm", "admin"]}, ("inference",)),
    ],
)  # fmt: skip
async def test_what_a_token_is_for_stands_in_its_claim(provider, tokens, rules, claims, scopes):
    assert (await tokens(**rules).identity(provider.token(**claims))).rules.scopes == scopes


@pytest.mark.parametrize(
    ("subject", "name"),
    [("u1", "token-u1"), (None, "token-unknown"), ("a b", "token-c8687a08aa5d6ed2"), ("x" * 300, None)],
)
async def test_the_subject_of_a_token_stands_in_records_in_a_form_that_fits(provider, tokens, subject, name):
    found = (await tokens().identity(provider.token(sub=subject))).rules.id
    assert len(found) <= 64
    assert name in (None, found)


async def test_what_is_remembered_is_bounded_and_forgotten_at_its_end(provider, http, monkeypatch):
    monkeypatch.setattr(tokens_module, "TOKENS_MAX", 3)
    wall = FakeClock()
    wall.advance(time.time() - wall())
    rules = TenantIssuerSettings(issuer=provider.issuer, audiences=(AUDIENCE,), leeway_seconds=0)
    at = TokenVerifier([Issuer(rules, http)], wall)
    for number in range(10):
        await at.identity(provider.token(sub=f"s{number}"))
    assert len(at) == 3
    token = provider.token(exp=time.time() + 3)
    assert await at.identity(token) is await at.identity(token)
    wall.advance(4)
    await asyncio.sleep(3.1)
    assert await refusal(at, token) == "it has expired"


def issuers(provider, **rules):
    return json.dumps([{"issuer": provider.issuer, "audiences": [AUDIENCE], **rules}])


async def asked(running, token, path="/v1/models"):
    async with running.http.get(running.url + path, headers={"Authorization": f"Bearer {token}"}) as answer:
        body = await answer.json()
        return answer.status, body["error"]["code"] if "error" in body else None, answer.headers


async def test_a_token_does_what_a_key_of_its_tenant_does(gateway, provider):
    settings = {"authentication.tokens": issuers(provider, scope_claim="scope")}
    tenants = {"acme": {"models": {"deny": ["n"]}}, "off": {"disabled": True}}
    async with (
        ScriptedWorker(models=["m", "n"]) as worker,
        gateway(worker, tenants=tenants, **settings) as running,
    ):
        good = provider.token(scope="inference")
        async with running.http.post(
            running.url + "/v1/completions", json={"model": "m", "prompt": "hi"}, headers={"x-api-key": good}
        ) as answer:
            assert answer.status == 200
        async with running.chat() as answer:
            assert answer.status == 200
        assert worker.seen[0].body["cache_salt"] == worker.seen[1].body["cache_salt"]
        assert "Authorization" not in worker.seen[0].headers
        async with running.http.post(
            running.url + "/v1/completions",
            json={"model": "n", "prompt": "hi"},
            headers={"Authorization": f"Bearer {good}"},
        ) as answer:
            assert answer.status == 403
        for token, outcome in (
            (provider.token(scope="usage"), (403, "scope_not_allowed")),
            (provider.token(tenant="nobody", scope="inference"), (403, "tenant_not_named")),
            (provider.token(tenant="off", scope="inference"), (403, "account_disabled")),
            (provider.token(exp=1), (401, "invalid_token")),
            (provider.token(iss="https://elsewhere"), (401, "invalid_api_key")),
        ):
            status, code, headers = await asked(running, token)
            assert (status, code) == outcome
            assert ("invalid_token" in headers.get("www-authenticate", "")) is (code == "invalid_token")


async def test_the_organisation_of_a_token_has_to_be_that_of_its_tenant(gateway, provider):
    settings = {"authentication.tokens": issuers(provider, organisation_claim="org")}
    tenants = {"acme": {"organisation": "acme-corp"}}
    async with ScriptedWorker() as worker, gateway(worker, tenants=tenants, **settings) as running:
        assert (await asked(running, provider.token(org="acme-corp")))[0] == 200
        assert (await asked(running, provider.token(org="globex")))[:2] == (403, "tenant_not_named")


async def test_wrong_tokens_are_penalised_as_wrong_keys_are(gateway, provider):
    settings = {
        "authentication.tokens": issuers(provider),
        "authentication.failures_per_minute_max": "2",
    }
    async with ScriptedWorker() as worker, gateway(worker, **settings) as running:
        codes = [(await asked(running, provider.token(exp=1)))[1] for _ in range(3)]
        assert codes == ["invalid_token", "invalid_token", "too_many_failures"]
        assert (await asked(running, provider.token()))[0] == 200


async def test_while_the_issuer_is_away_its_tokens_get_a_503_and_keys_go_on(gateway, provider):
    provider.up = False
    settings = {"authentication.tokens": issuers(provider)}
    async with ScriptedWorker() as worker, gateway(worker, **settings) as running:
        assert (await asked(running, provider.token()))[:2] == (503, "keys_unavailable")
        assert (await asked(running, running.keys["acme"].text))[0] == 200


async def test_readiness_and_metrics_have_the_state_of_each_issuer(gateway, provider, monkeypatch):
    monkeypatch.setattr(issuer_module, "RETRY_SECONDS", 0.05)

    async def said(running):
        async with running.http.get(f"{running.admin}/health/ready") as answer:
            word = (await answer.json())["token_issuers"]
        async with running.http.get(f"{running.admin}/metrics") as answer:
            lines = (await answer.text()).splitlines()
        one = f'{{issuer="{provider.issuer}"}}'
        up, fresh = (f"radixgate_token_issuer_{name}{one} 1.0" in lines for name in ("up", "fresh"))
        return word, up, fresh

    async def until(running, wanted):
        async with asyncio.timeout(60):
            while (found := await said(running)) != wanted:
                assert found[0] != "none"
                await asyncio.sleep(0.02)

    provider.up = False
    settings = {
        "authentication.tokens": issuers(provider, refresh_seconds=0.05),
        "admin.issuers": issuers(provider, refresh_seconds=0.05),
    }
    async with ScriptedWorker() as worker, gateway(worker, **settings) as running:
        await until(running, ("not read", False, False))
        provider.up = True
        await until(running, ("known", True, True))
        provider.up = False
        await until(running, ("away", False, True))
    async with ScriptedWorker() as worker, gateway(worker) as running:
        assert (await said(running))[0] == "none"
