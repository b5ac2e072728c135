"""Consumers. Read in this order: ``subscription`` (what is wanted), ``pull`` (the plainest one), ``processqueue`` and
``offsets`` (what a push consumer keeps), ``pulling`` and ``rebalance`` (how queues are read and shared),
``concurrent`` and ``orderly`` (how messages are handed out), ``push`` and ``litepull`` (the faces).
"""
