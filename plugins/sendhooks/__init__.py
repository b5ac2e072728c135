"""What happens around sends and deliveries, in clients and in the broker: three plugins.

``trace``    records for ``mqadmin queryMsgTraceById``: who sent a message, when and where to, who consumed it
``audit``    a line per send, taken or refused, in a file
``enrich``   properties that every message gets: who sent it, from where, for which team

Each works in a client (``Producer(…, plugins=["trace"])``) and in a broker (``enable = ["default", "trace"]``). None of
them is active by default.
"""
