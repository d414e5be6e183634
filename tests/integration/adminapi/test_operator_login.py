"""Operators log in with a browser: the code flow before an identity provider, and what a session may."""

from contextlib import asynccontextmanager
from urllib.parse import parse_qs, urlsplit

import aiohttp
import pytest

from gateway.adminapi.sessions import COOKIE, SECURE_COOKIE, OperatorSession
from gateway.adminapi.signed_cookies import CookieSigner
from gateway.settings.sources import load_settings
from gateway.settings.types import SettingsProblem
from tests.conftest import SECRET
from tests.fakes.identity_provider import AUDIENCE, CLIENT, CLIENT_SECRET, IdentityProvider
from tests.fakes.scripted_worker import ScriptedWorker

A_WORKER = 'workers=[{"id": "w", "kind": "openai", "url": "http://localhost:1"}]'


class Browser:
    """Follows redirects and keeps cookies; tells what a page of the listener's own would tell."""

    def __init__(self, admin):
        self.admin = admin
        self.http = aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True))

    async def get(self, path, *, follow=True, **headers):
        """(status, text, headers)."""
        url = path if path.startswith("http") else self.admin + path
        async with self.http.get(url, allow_redirects=follow, headers=headers) as answer:
            return answer.status, await answer.text(), answer.headers

    async def put(self, path, body, **headers):
        async with self.http.put(self.admin + path, json=body, headers=headers) as answer:
            return answer.status, await answer.json(content_type=None)

    async def log_out(self):
        headers = {"Sec-Fetch-Site": "same-origin"}
        async with self.http.post(self.admin + "/ui/logout", headers=headers) as answer:
            return (await answer.json())["url"]

    def cookie(self, name):
        return next((cookie for cookie in self.http.cookie_jar if cookie.key == name), None)


@pytest.fixture
async def provider():
    async with IdentityProvider() as provider:
        yield provider


@pytest.fixture
def office(gateway, provider, tmp_path):
    """A browser before a gateway whose operators log in at the provider."""

    @asynccontextmanager
    async def start(*, login=None, **settings):
        rules = {
            "issuer": provider.issuer,
            "audiences": [AUDIENCE],
            "algorithms": [provider.algorithm],
            "login": {"client_id": CLIENT, "client_secret": CLIENT_SECRET, **(login or {})},
        }
        more = {"admin.issuers": [rules], "database.url": f"sqlite:///{tmp_path}/t.db", **settings}
        async with ScriptedWorker() as worker, gateway(worker, **more) as running:
            browser = Browser(running.admin)
            async with browser.http:
                yield browser

    return start


async def test_an_operator_without_a_session_is_sent_to_log_in_and_then_back_to_the_page(office, provider):
    async with office() as browser:
        status, text, _ = await browser.get("/ui/")
        assert (status, "<title>radixgate</title>" in text) == (200, True)
        status, text, _ = await browser.get("/ui/session")
        assert '"name":"login:ada","role":"operator","login":true' in text
        assert (await browser.get("/admin/v1/overview"))[0] == 200
        assert (await browser.get("/admin/v1/plans"))[0] == 200
        (asked,) = provider.begun
        assert (asked["scope"], asked["code_challenge_method"]) == ("openid profile", "S256")
        assert asked["redirect_uri"] == f"{browser.admin}/ui/callback"
        cookie = browser.cookie(COOKIE)
        assert (cookie["httponly"], cookie["samesite"], cookie["path"]) == (True, "Lax", "/")
        assert cookie["secure"] == ""


async def test_a_change_by_a_session_is_logged_under_its_name_and_bounded_by_its_role(office, provider):
    own = {"Sec-Fetch-Site": "same-origin"}
    async with office() as browser:
        await browser.get("/ui/")
        assert (await browser.put("/admin/v1/plans/p", {}, **own))[0] == 201
        assert '"who":"login:ada"' in (await browser.get("/admin/v1/audit"))[1]
        assert (await browser.get("/admin/v1/operators"))[0] == 403


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Origin": "http://evil.example"},
    ],
    ids=["silent", "cross-site", "same-site", "origin"],
)
async def test_a_page_of_another_origin_changes_nothing_with_a_session(office, headers):
    async with office() as browser:
        await browser.get("/ui/")
        assert (await browser.put("/admin/v1/plans/p", {}, **headers))[0] == 401
        assert (await browser.put("/admin/v1/plans/p", {}, Origin=browser.admin))[0] == 201


async def test_a_logout_ends_the_session_also_for_a_copy_of_its_cookie(office, provider):
    async with office() as browser:
        await browser.get("/ui/")
        copied = f"{COOKIE}={browser.cookie(COOKIE).value}"
        url = urlsplit(await browser.log_out())
        assert f"{url.scheme}://{url.netloc}{url.path}" == f"{provider.issuer}/logout"
        assert parse_qs(url.query)["post_logout_redirect_uri"] == [f"{browser.admin}/ui/"]
        assert browser.cookie(COOKIE) is None
        assert (await browser.get("/admin/v1/overview"))[0] == 401
        assert (await browser.get("/admin/v1/overview", Cookie=copied))[0] == 401


async def test_a_logout_ends_the_session_in_all_gateways(office):
    async with office() as browser, office() as elsewhere:
        await browser.get("/ui/")
        copied = f"{COOKIE}={browser.cookie(COOKIE).value}"
        assert (await elsewhere.get("/admin/v1/overview", Cookie=copied))[0] == 200
        await browser.log_out()
        assert (await elsewhere.get("/admin/v1/overview", Cookie=copied))[0] == 401


async def test_a_logout_ends_no_session_of_other_operators(office):
    async with office() as browser, office() as elsewhere:
        await browser.get("/ui/")
        await elsewhere.get("/ui/")
        await browser.log_out()
        assert (await elsewhere.get("/admin/v1/overview"))[0] == 200


async def test_behind_tls_the_cookie_is_for_https_and_this_host_alone(office, provider):
    async with office(login={"url": "https://operators.example.com/"}) as browser:
        status, _, headers = await browser.get("/ui/login", follow=False)
        assert status == 303
        asked = parse_qs(urlsplit(headers["location"]).query)
        assert asked["redirect_uri"] == ["https://operators.example.com/ui/callback"]
        assert "Secure" in headers["set-cookie"]
        begun = headers["set-cookie"].partition(";")[0]
        _, _, headers = await browser.get(headers["location"], follow=False)
        back = headers["location"].replace("https://operators.example.com", browser.admin)
        status, _, headers = await browser.get(back, follow=False, Cookie=begun)
        assert status == 303
        (session,) = [c for c in headers.getall("set-cookie") if c.startswith(SECURE_COOKIE)]
        for part in ("HttpOnly", "Path=/", "SameSite=Lax", "Secure"):
            assert part in session
        assert "Domain" not in session
        given = session.partition(";")[0]
        assert (await browser.get("/admin/v1/overview", Cookie=given))[0] == 200
        plain = given.replace(SECURE_COOKIE, COOKIE)
        assert (await browser.get("/admin/v1/overview", Cookie=plain))[0] == 401


async def test_a_login_that_was_begun_in_another_browser_is_none(office):
    async with office() as browser:
        _, _, headers = await browser.get("/ui/login", follow=False)
        _, _, headers = await browser.get(headers["location"], follow=False)
        browser.http.cookie_jar.clear()
        assert (await browser.get(headers["location"], follow=False))[0] == 400
        await browser.get("/ui/login", follow=False)
        assert (await browser.get(headers["location"], follow=False))[0] == 400


async def test_a_code_is_good_once(office):
    async with office() as browser:
        _, _, headers = await browser.get("/ui/login", follow=False)
        begun = headers["set-cookie"].partition(";")[0]
        _, _, headers = await browser.get(headers["location"], follow=False)
        statuses = [(await browser.get(headers["location"], follow=False, Cookie=begun))[0] for _ in range(2)]
        assert statuses == [303, 403]


@pytest.mark.parametrize(
    ("person", "said"),
    [
        ({"roles": ["nobody"]}, "have no role here"),
        ({"roles": None}, "have no role here"),
        ({"nonce": "another"}, "token is invalid"),
        ({"nonce": None}, "token is invalid"),
        ({"aud": AUDIENCE}, "token is invalid"),
        ({"aud": [CLIENT, "another"]}, "token is invalid"),
        ({"aud": [CLIENT, "another"], "azp": "another"}, "token is invalid"),
        ({"azp": "another"}, "token is invalid"),
        ({"exp": 1}, "token is invalid"),
        ({"iss": "http://elsewhere"}, "token is invalid"),
    ],
    ids=[
        "role",
        "no roles",
        "nonce",
        "no nonce",
        "audience",
        "no azp",
        "azp",
        "azp alone",
        "expired",
        "issuer",
    ],
)
async def test_an_id_token_that_is_not_for_this_login_opens_nothing(office, provider, person, said):
    provider.person = {**provider.person, **person}
    async with office() as browser:
        status, text, headers = await browser.get("/ui/")
        assert (status, said in text) == (403, True)
        assert headers["content-type"] == "application/problem+json"
        assert browser.cookie(COOKIE) is None


async def test_two_audiences_are_good_where_this_client_made_the_request(office, provider):
    provider.person = {**provider.person, "aud": [CLIENT, "another"], "azp": CLIENT}
    async with office() as browser:
        assert (await browser.get("/ui/"))[0] == 200


async def test_a_refusal_of_the_provider_is_shown_only_as_a_plain_error_code(office, provider):
    async with office() as browser:
        provider.refuses = "access_denied"
        status, text, _ = await browser.get("/ui/")
        assert (status, "access_denied" in text) == (403, True)
        provider.refuses = "<script>"
        status, text, _ = await browser.get("/ui/")
        assert (status, "script" in text) == (403, False)


async def test_while_the_provider_is_away_no_login_succeeds_and_no_session_ends(office, provider):
    async with office() as browser:
        await browser.get("/ui/")
        provider.describes = False
        assert (await browser.get("/ui/"))[0] == 200
        assert (await browser.get("/ui/login"))[0] == 503
        provider.describes, provider.up = True, False
        assert (await browser.get("/ui/login"))[0] == 403
        assert await browser.log_out() != ""
        assert browser.cookie(COOKIE) is None


async def test_a_wrong_client_secret_lets_no_operator_in_and_is_shown_to_none(office, provider):
    async with office(login={"client_secret": "another secret"}) as browser:
        status, text, _ = await browser.get("/ui/")
        assert (status, "another secret" in text) == (403, False)


@pytest.mark.parametrize("to", ["//evil.example/", "https://evil.example/", "/ui/../x", "/admin/v1/keys"])
async def test_a_login_leads_to_pages_of_this_listener_only(office, to):
    async with office() as browser:
        async with browser.http.get(f"{browser.admin}/ui/login", params={"to": to}) as answer:
            assert str(answer.url) == f"{browser.admin}/ui/"


@pytest.mark.parametrize(
    "changes",
    [{"ends": 1.0}, {"issuer": "http://elsewhere"}, {"secret": "another secret"}],
    ids=["ended", "another issuer", "another deployment"],
)
async def test_a_session_that_is_not_of_here_and_now_opens_nothing(office, provider, changes):
    async with office() as browser:
        given = {"id": "x", "name": "login:eve", "role": "owner", "issuer": provider.issuer, "ends": 1e12}
        secret = changes.get("secret", SECRET)
        good = CookieSigner.from_deployment_secret(SECRET.encode()).sign(OperatorSession(**given))
        assert (await browser.get("/admin/v1/overview", Cookie=f"{COOKIE}={good}"))[0] == 200
        given |= {name: value for name, value in changes.items() if name != "secret"}
        bad = CookieSigner.from_deployment_secret(secret.encode()).sign(OperatorSession(**given))
        assert (await browser.get("/admin/v1/overview", Cookie=f"{COOKIE}={bad}"))[0] == 401


async def test_where_operators_can_log_in_a_local_address_gives_no_rights(office):
    async with office() as browser:
        assert (await browser.get("/admin/v1/overview"))[0] == 401
        assert (await browser.get("/admin/v1/plans"))[0] == 401
        assert (await browser.get("/health/ready"))[0] == 200


async def test_beside_a_login_the_page_takes_the_admin_token_of_its_address(office):
    async with office(**{"admin.token": "7be41c0d9a5f4e3288c6d1b0f7a9e253"}) as browser:
        status, _, headers = await browser.get("/ui/", follow=False)
        assert (status, headers["location"]) == (303, "/ui/login?to=/ui/")
        for path in ("/ui/?token=7be41c0d9a5f4e3288c6d1b0f7a9e253", "/ui/main.js", "/ui/console.css"):
            status, _, headers = await browser.get(path, follow=False)
            assert (status, "set-cookie" in headers) == (200, False)


async def test_a_login_needs_no_database(office):
    async with office(**{"database.url": "none"}) as browser:
        assert (await browser.get("/ui/"))[0] == 200
        assert (await browser.get("/admin/v1/overview"))[0] == 200


def test_one_issuer_has_the_login():
    login = {"audiences": ["a"], "login": {"client_id": "c"}}
    many = [{"issuer": "https://a", **login}, {"issuer": "https://b", **login}]
    with pytest.raises(SettingsProblem) as problem:
        load_settings(None, {"X": ""}, [f"admin.issuers={many}".replace("'", '"'), A_WORKER])
    assert str(problem.value) == "$.admin.issuers[1].login: only one issuer can have the login of /ui"
