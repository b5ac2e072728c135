"""The store: the commit log and its consume queues as one, opened, appended to, kept and closed."""

from verniermq.kernel.store.store import Appended, DispatchEvent, Listener, Store, StoreSettings, TagsCoder

__all__ = ["Appended", "DispatchEvent", "Listener", "Store", "StoreSettings", "TagsCoder"]
