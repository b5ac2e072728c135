"""The ports of a broker that a test kills and starts again."""

from __future__ import annotations

import socket

import pytest

from verniermq.testing import broker_process


def test_the_ports_of_a_killed_broker_are_given_to_nobody_else() -> None:
    with broker_process() as process:
        addresses = process.broker, process.namesrv
        process.kill()

        for address in addresses:
            host, _, port = address.rpartition(":")
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection((host, int(port)))
            with socket.socket() as other, pytest.raises(OSError, match="in use"):
                other.bind((host, int(port)))

        process.start()
        assert (process.broker, process.namesrv) == addresses
