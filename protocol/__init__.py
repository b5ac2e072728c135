"""The requests of RocketMQ that the kernel does not serve, for plugins that serve them and clients that send them.

A file per family, imported by its own name: ``from verniermq.protocol.pop import PopMessage``. The kernel's own
requests, and what a request class is made of, are in ``verniermq.kernel.requests``. A request that only one plugin and
operators' tools know is with that plugin. Nothing here knows a broker or a client.
"""
