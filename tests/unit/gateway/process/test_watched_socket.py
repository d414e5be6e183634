"""Sockets that are probed when they are idle, on systems with all options and with few."""

import socket

from gateway.process.watched_socket import watched_socket

ADDRESS = (socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", ("127.0.0.1", 80))


def test_an_idle_connection_is_probed():
    with watched_socket(ADDRESS, idle_seconds=7) as made:
        assert made.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        if hasattr(socket, "TCP_KEEPIDLE"):
            assert made.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 7


def test_a_system_without_the_options_has_keepalive_alone(monkeypatch):
    for name in ("TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT"):
        monkeypatch.delattr(socket, name, raising=False)
    with watched_socket(ADDRESS, idle_seconds=7) as made:
        assert made.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
