"""Django: messages that are sent when a transaction is committed, and a backend for ``django-tasks``.

::

    # settings.py
    VERNIERMQ = {"namesrv": "127.0.0.1:9876", "group": "shop"}
    INSTALLED_APPS = [..., "verniermq.contrib.django"]            # for the worker command
    TASKS = {"default": {"BACKEND": "verniermq.contrib.django.backend.TaskBackend"}}
"""

from verniermq.contrib.django.producer import get_producer, send_on_commit

__all__ = ["get_producer", "send_on_commit"]
