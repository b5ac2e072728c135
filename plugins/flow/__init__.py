"""How fast a group, a topic, a client or a kind of request may go, by Sentinel's rules."""
