"""A console in the browser: brokers, topics, groups and messages of a cluster, VernierMQ's or Apache's.

The plugin ``console`` runs it in a broker, ``verniermq console`` beside any cluster, with the same pages.
Everything is asked by RocketMQ's own requests::

    inquiry      who is asked, on whose behalf, and what was not answered
    brokers, topics, groups, …   what is asked, as plain data
    pages/       an address → the data that it shows
    app          that data as HTML, as JSON, and live

Looking changes nothing: no page creates, commits, registers or counts anything.
"""
