"""RocketMQ 5's gRPC protocol: a port beside the broker's own for the clients of Python, Node, Java 5, Go 5, C++, C#.

::

    port ──> port.py        TLS or plain, by the first byte; certificate.py
             http2.py       a connection: frames, windows, limits; stream.py, frames.py
    call ──> server.py      who calls, what it is told if something is wrong
             routes.py      where a topic is
             telemetry.py   what a client says of itself; clients.py: the connections that its calls are made on
             send.py        messages, transactions, recalls          ──┐
             receive.py     pops, waited for; delivery.py, unread.py   ├──> brokers.py ──> the broker's handlers
             ack.py         done with, not yet, never; renewal.py    ──┘
    neighbours.py           the other brokers of a cluster, which routes name too
    remote.py, command.py   ``verniermq proxy``: the same in front of other brokers
    schema.py, enums.py     the messages of the protocol, as tables

Every call becomes requests that the broker serves like those of any other client, so that access control, flow
control, transactions, delays and retries are those of the broker. Switched on by one line in ``broker.toml``::

    [plugins]
    enable = ["default", "grpc"]
"""
