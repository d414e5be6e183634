"""When a certificate expires, read without a crypto package: beside what openssl says."""

import re
import ssl
import subprocess

from gateway.runtime.certificate_expiry import expires_at
from tests.fakes.scripted_worker import ScriptedWorker
from tests.fakes.tls_terminator import certificate


def test_the_expiry_is_that_which_openssl_reads(tmp_path):
    cert, _ = certificate(tmp_path)
    said = subprocess.run(
        ["openssl", "x509", "-enddate", "-noout", "-in", cert], capture_output=True, text=True, check=True
    ).stdout
    assert expires_at(str(cert)) == ssl.cert_time_to_seconds(said.strip().removeprefix("notAfter="))


def test_a_file_that_is_no_certificate_has_no_expiry(tmp_path):
    assert expires_at(str(tmp_path / "missing")) is None
    cert, key = certificate(tmp_path)
    assert expires_at(str(key)) is None
    cert.write_text("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
    assert expires_at(str(cert)) is None


async def test_the_metrics_page_shows_the_expiry_of_each_listener(gateway, tmp_path):
    cert, key = certificate(tmp_path)
    settings = {"listen.tls.certificate": str(cert), "listen.tls.key": str(key)}
    async with ScriptedWorker() as worker, gateway(worker, **settings) as running:
        async with running.http.get(running.admin + "/metrics") as response:
            found = re.search(
                r'radixgate_certificate_expiry_timestamp_seconds\{listener="listen"\} (\S+)',
                await response.text(),
            )
        assert float(found[1]) == expires_at(str(cert))
