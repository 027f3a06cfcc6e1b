"""Tests cannot reach another machine, whatever they try."""

import asyncio
import socket

import pytest

from tests.conftest import NetworkUsed


@pytest.mark.parametrize("address", [("192.0.2.1", 80), ("8.8.8.8", 53)])
def test_a_connection_to_another_machine_is_refused(address):
    with socket.socket() as one, pytest.raises(NetworkUsed, match="stay on this machine"):
        one.connect(address)
    with socket.socket(type=socket.SOCK_DGRAM) as one, pytest.raises(NetworkUsed):
        one.sendto(b"hello", address)


def test_a_name_is_not_looked_up():
    with pytest.raises(NetworkUsed, match=r"api\.openai\.com"):
        socket.getaddrinfo("api.openai.com", 443)

    async def reach():
        await asyncio.open_connection("192.0.2.1", 80)

    with pytest.raises(NetworkUsed):
        asyncio.run(reach())


def test_this_machine_can_be_reached():
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket() as one:
        one.connect(server.getsockname())
        assert one.getpeername() == server.getsockname()
