"""The campaign: seeded rounds of kills, full disks, damage, hostile peers and random requests, for any time.

``make campaign MINUTES=10 KINDS=kill,disk`` runs it. Each kind is one file, whose round is a function from a seed to an
:class:`~tests.campaign.outcome.Outcome`; the same seed does the same things again, as far as processes and disks allow.
What a run found is appended to ``bench/results/campaign.jsonl``, and the next run goes on with new seeds. A short part
of each kind is in ``test_campaign.py``.
"""
