"""Attacks on the login of operators: guessed sessions and codes, planted cookies, stolen halves of a login."""

import base64
import secrets
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest

from gateway.adminapi.sessions import COOKIE
from tests.integration.adminapi.test_operator_login import office, provider

__all__ = ["office", "provider"]

TOKEN = "7be41c0d9a5f4e3288c6d1b0f7a9e253"


async def test_no_guessed_or_altered_session_is_one(office):
    async with office() as browser:
        await browser.get("/ui/")
        good = browser.cookie(COOKIE).value
        browser.http.cookie_jar.clear()
        altered = [
            good[:at] + ("A" if good[at] != "A" else "B") + good[at + 1 :] for at in range(len(good) - 1)
        ]
        guessed = [secrets.token_urlsafe(len(good)) for _ in range(50)]
        odd = [
            "",
            ".",
            "..",
            good + "A",
            good * 2,
            good[: len(good) // 2],
            "=" * 50,
            base64.b64encode(b"{}").decode(),
        ]
        for cookie in (*altered, *guessed, *odd):
            status, _, _ = await browser.get("/admin/v1/overview", Cookie=f"{COOKIE}={cookie}")
            assert status == 401, cookie
        assert (await browser.get("/admin/v1/overview", Cookie=f"{COOKIE}={good}"))[0] == 200


async def test_a_planted_session_is_not_taken_over_by_a_login(office):
    """An attacker that plants a cookie before a login does not hold the session that the login begins."""
    async with office() as attacker, office() as victim:
        await attacker.get("/ui/")
        planted = f"{COOKIE}={attacker.cookie(COOKIE).value}"
        _, _, headers = await victim.get("/ui/login", follow=False, Cookie=planted)
        begun = headers["set-cookie"].partition(";")[0]
        _, _, headers = await victim.get(headers["location"], follow=False)
        _, _, headers = await victim.get(headers["location"], follow=False, Cookie=f"{begun}; {planted}")
        given = [each.partition(";")[0] for each in headers.getall("set-cookie")]
        (mine,) = [each for each in given if each.startswith(f"{COOKIE}=")]
        assert mine != planted
        victim.http.cookie_jar.clear()
        # Each is a session of its own: the end of one does not end the other.
        await attacker.log_out()
        assert (await victim.get("/admin/v1/overview", Cookie=planted))[0] == 401
        assert (await victim.get("/admin/v1/overview", Cookie=mine))[0] == 200


async def test_guessed_codes_and_states_open_nothing(office):
    async with office() as browser:
        _, _, headers = await browser.get("/ui/login", follow=False)
        begun = headers["set-cookie"].partition(";")[0]
        state = parse_qs(urlsplit(headers["location"]).query)["state"][0]
        for _ in range(20):
            code = secrets.token_urlsafe(24)
            asked = urlencode({"code": code, "state": state})
            assert (await browser.get(f"/ui/callback?{asked}", follow=False, Cookie=begun))[0] == 403
            asked = urlencode({"code": code, "state": secrets.token_urlsafe(24)})
            assert (await browser.get(f"/ui/callback?{asked}", follow=False, Cookie=begun))[0] == 400
        assert browser.cookie(COOKIE) is None


async def test_a_code_of_the_attackers_login_does_not_log_the_victim_in(office):
    async with office() as attacker, office() as victim:
        _, _, headers = await attacker.get("/ui/login", follow=False)
        _, _, headers = await attacker.get(headers["location"], follow=False)
        back = headers["location"].replace(attacker.admin, victim.admin)
        _, _, begun = await victim.get("/ui/login", follow=False)
        assert (await victim.get(back, follow=False))[0] == 400
        assert victim.cookie(COOKIE) is None
        assert "set-cookie" in begun


@pytest.mark.parametrize("value", ["x" * 5000, "\u00e9", "a=b; c=d", '"quoted"', "%00"])
async def test_odd_cookies_are_no_reason_to_fail(office, value):
    async with office() as browser:
        for path in ("/admin/v1/overview", "/ui/callback?code=a&state=b", "/ui/login"):
            status, _, _ = await browser.get(
                path, follow=False, Cookie=f"{COOKIE}={value}; radixgate_login={value}"
            )
            assert status in (303, 400, 401)


async def test_wrong_operator_tokens_are_slowed_and_a_session_goes_on_meanwhile(office):
    few = {"authentication.failures_per_minute_max": "5", "admin.token": TOKEN}
    async with office(**few) as browser:
        await browser.get("/ui/")
        wrong = [
            (await browser.get("/admin/v1/overview", Authorization=f"Bearer {at:032x}"))[0] for at in range(8)
        ]
        assert wrong == [401] * 5 + [429] * 3
        assert (await browser.get("/admin/v1/overview", Authorization=f"Bearer {TOKEN}"))[0] == 429
        assert (await browser.get("/admin/v1/overview"))[0] == 200
