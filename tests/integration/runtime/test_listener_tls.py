"""TLS of the listeners: a certificate of the settings, read again without a lost connection."""

import os
import ssl

import aiohttp
import pytest

from gateway.runtime.certificates import ServerTls
from gateway.settings.listeners import ListenerTlsSettings
from gateway.settings.types import SettingsProblem
from tests.fakes.scripted_worker import ScriptedWorker
from tests.fakes.tls_terminator import certificate


def trusting(cert):
    return aiohttp.TCPConnector(ssl=ssl.create_default_context(cafile=str(cert)))


def settings_of(cert, key, **more):
    tls = {"certificate": str(cert), "key": str(key), **more}
    return {f"{at}.tls.{name}": value for at in ("listen", "admin") for name, value in tls.items()}


async def models(running, http):
    async with http.get(running.url + "/v1/models", headers=running.headers()) as answer:
        return answer.status


async def test_both_listeners_serve_tls_and_a_new_certificate_costs_no_connection(gateway, tmp_path):
    cert, key = certificate(tmp_path)
    async with ScriptedWorker() as worker, gateway(worker, **settings_of(cert, key)) as running:
        assert running.url.startswith("https://")
        assert running.admin.startswith("https://")
        async with aiohttp.ClientSession(connector=trusting(cert)) as http:
            assert await models(running, http) == 200
            async with http.get(running.admin + "/health/live") as answer:
                assert answer.status == 200
            worker.then(tokens=6, gap=0.1)
            headers, body = running.headers(), {"model": "m", "stream": True, "messages": []}
            body["messages"] = [{"role": "user", "content": "hi"}]
            async with http.post(running.url + "/v1/chat/completions", json=body, headers=headers) as stream:
                await stream.content.readline()
                old = cert.read_bytes()
                certificate(tmp_path)  # another one, in the same files
                assert cert.read_bytes() != old
                for watch in running.here.certificates:
                    assert watch.renew()
                assert (await stream.read()).endswith(b"data: [DONE]\n\n")
        async with aiohttp.ClientSession(connector=trusting(cert)) as http:
            assert await models(running, http) == 200  # with the new one


async def test_callers_need_a_certificate_where_authorities_are_named(gateway, tmp_path):
    cert, key = certificate(tmp_path)
    settings = settings_of(cert, key, client_ca=str(cert))
    async with ScriptedWorker() as worker, gateway(worker, **settings) as running:
        async with aiohttp.ClientSession(connector=trusting(cert)) as http:
            with pytest.raises(aiohttp.ClientError):
                await models(running, http)
        context = ssl.create_default_context(cafile=str(cert))
        context.load_cert_chain(cert, key)
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context)) as http:
            assert await models(running, http) == 200


def presenting(directory, server_cert):
    """A connector with a client certificate of its own, and that certificate's file."""
    directory.mkdir()
    cert, key = certificate(directory)
    context = ssl.create_default_context(cafile=str(server_cert))
    context.load_cert_chain(cert, key)
    return aiohttp.TCPConnector(ssl=context, force_close=True), cert


@pytest.mark.any_loop
async def test_an_authority_that_leaves_the_file_is_trusted_no_more(gateway, tmp_path):
    cert, key = certificate(tmp_path)
    staying, staying_ca = presenting(tmp_path / "staying", cert)
    leaving, leaving_ca = presenting(tmp_path / "leaving", cert)
    authorities = tmp_path / "authorities.pem"
    authorities.write_text(staying_ca.read_text() + leaving_ca.read_text())
    settings = settings_of(cert, key, client_ca=str(authorities))
    async with (
        ScriptedWorker() as worker,
        gateway(worker, **settings) as running,
        aiohttp.ClientSession(connector=staying) as trusted,
        aiohttp.ClientSession(connector=leaving) as distrusted,
    ):
        assert await models(running, trusted) == await models(running, distrusted) == 200
        authorities.write_text(staying_ca.read_text())
        for watch in running.here.certificates:
            assert watch.renew()
        assert await models(running, trusted) == 200
        with pytest.raises(aiohttp.ClientError):
            await models(running, distrusted)


def test_a_certificate_that_is_half_written_changes_nothing(tmp_path, caplog):
    cert, key = certificate(tmp_path)
    server = ServerTls(ListenerTlsSettings(certificate=str(cert), key=str(key)), "$.listen.tls")
    assert not server.renew()
    whole = cert.read_text()
    cert.write_text(whole[: len(whole) // 2])
    assert not server.renew()
    assert "cannot be used" in caplog.text
    cert.write_text(whole)
    os.utime(cert, ns=(1, 1))
    assert server.renew()


def test_a_certificate_without_its_key_is_a_problem_of_the_settings(tmp_path):
    cert, _ = certificate(tmp_path)
    (tmp_path / "other").mkdir()
    _, key = certificate(tmp_path / "other")
    with pytest.raises(SettingsProblem, match=r"\$\.listen\.tls: the certificate cannot be used"):
        ServerTls(ListenerTlsSettings(certificate=str(cert), key=str(key)), "$.listen.tls")
