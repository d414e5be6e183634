"""The listener of the endpoint picker: its TLS, its address, and the extra that it needs."""

import sys

import grpc
import pytest

from gateway.endpoint_picker import ext_proc_pb2 as messages
from gateway.runtime.listen_error import ListenAddressUnavailable
from gateway.settings.types import SettingsProblem
from tests.fakes.scripted_envoy import CHECK, ScriptedEnvoy
from tests.fakes.scripted_worker import ScriptedWorker
from tests.fakes.tls_terminator import certificate


def picker(**more):
    return {f"listen.endpoint_picker.{name}": str(value) for name, value in {"port": 0, **more}.items()}


async def health_over_tls(port, authorities, pair=None):
    key, own = pair if pair is not None else (None, None)
    credentials = grpc.ssl_channel_credentials(authorities.read_bytes(), key, own)
    async with grpc.aio.secure_channel(f"127.0.0.1:{port}", credentials) as channel:
        check = channel.unary_unary(
            CHECK,
            request_serializer=messages.HealthCheckRequest.SerializeToString,
            response_deserializer=messages.HealthCheckResponse.FromString,
        )
        return (await check(messages.HealthCheckRequest(), timeout=30)).status


async def test_it_serves_tls_and_reads_a_renewed_certificate(gateway, tmp_path):
    cert, key = certificate(tmp_path)
    settings = picker(**{"tls.certificate": cert, "tls.key": key})
    async with ScriptedWorker() as worker, gateway(worker, **settings) as running:
        url = running.here.endpoint_picker.url
        assert url.startswith("grpcs://")
        port = url.rpartition(":")[2]
        for _ in range(2):
            assert await health_over_tls(port, cert) == messages.HealthCheckResponse.SERVING
            certificate(tmp_path)  # another one, in the same files
        async with running.http.get(running.admin + "/metrics") as response:
            assert 'expiry_timestamp_seconds{listener="listen.endpoint_picker"}' in await response.text()


async def test_envoy_needs_a_certificate_where_authorities_are_named(gateway, tmp_path):
    cert, key = certificate(tmp_path)
    settings = picker(**{"tls.certificate": cert, "tls.key": key, "tls.client_ca": cert})
    async with ScriptedWorker() as worker, gateway(worker, **settings) as running:
        port = running.here.endpoint_picker.url.rpartition(":")[2]
        with pytest.raises(grpc.aio.AioRpcError):
            await health_over_tls(port, cert)
        pair = key.read_bytes(), cert.read_bytes()
        assert await health_over_tls(port, cert, pair) == messages.HealthCheckResponse.SERVING


async def test_a_certificate_that_is_none_is_a_problem_of_the_settings(gateway, tmp_path):
    cert, key = certificate(tmp_path)
    cert.write_text("no certificate")
    with pytest.raises(
        SettingsProblem, match=r"\$\.listen\.endpoint_picker\.tls: the certificate cannot be used"
    ):
        async with (
            ScriptedWorker() as worker,
            gateway(worker, **picker(**{"tls.certificate": cert, "tls.key": key})),
        ):
            pass


async def test_a_port_that_is_taken_is_named(gateway):
    async with ScriptedWorker() as worker, gateway(worker, **picker()) as running:
        url = running.here.endpoint_picker.url
        async with ScriptedEnvoy(url) as envoy:
            assert await envoy.health("") == messages.HealthCheckResponse.SERVING
        port = url.rpartition(":")[2]
        with pytest.raises(ListenAddressUnavailable, match=f"cannot listen on 127.0.0.1:{port}"):
            async with gateway(worker, **picker(port=port)):
                pass


async def test_without_grpc_the_check_of_the_settings_names_the_extra_to_install(gateway, monkeypatch):
    monkeypatch.delitem(sys.modules, "gateway.endpoint_picker.listener", raising=False)
    monkeypatch.setitem(sys.modules, "grpc.aio", None)
    with pytest.raises(SettingsProblem, match=r"radixgate\[ext-proc\]"):
        async with ScriptedWorker() as worker, gateway(worker, **picker()):
            pass
