"""VernierMQ and Apache RocketMQ on the same machine, in the same run, driven by the same Java client.

- ``rows.py``: what is compared, and what we aim at
- ``brokers.py``: the two sides, started as a user would
- ``driver.py``: Apache's Java client in a virtual machine that stays warm
- ``round.py``: everything that is measured of one side, from its start to its last restart
- ``machine.py``: what processes use, and what they run on
- ``results.py``: the figures of all rounds, as table, JSON and Markdown; ``chart.py`` draws them
"""
