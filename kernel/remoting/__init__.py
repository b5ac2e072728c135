"""Remoting: frames over TCP, requests and answers in both directions on each connection.

Read in this order: ``command`` (one request or answer), ``json_header`` and ``binary_header`` (its two forms),
``frame`` (bytes to commands), ``connection`` (one peer), ``server`` and ``client`` (how peers meet), ``tls``
(how they meet in private; imported only where it is spoken).
"""

from verniermq.kernel.remoting.address import parse_address
from verniermq.kernel.remoting.client import connect
from verniermq.kernel.remoting.command import Command, Piece, request_name
from verniermq.kernel.remoting.connection import Answer, Connection, Guard, Handler, Work
from verniermq.kernel.remoting.frame import FrameDecoder
from verniermq.kernel.remoting.interceptor import Intercepted, Interceptor, ServedTogether
from verniermq.kernel.remoting.limits import RemotingLimits
from verniermq.kernel.remoting.listener import Listener
from verniermq.kernel.remoting.server import RemotingServer

__all__ = [
    "Answer",
    "Command",
    "Connection",
    "FrameDecoder",
    "Guard",
    "Handler",
    "Intercepted",
    "Interceptor",
    "Listener",
    "Piece",
    "RemotingLimits",
    "RemotingServer",
    "ServedTogether",
    "Work",
    "connect",
    "parse_address",
    "request_name",
]
