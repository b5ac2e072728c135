"""The context of a trace in a message's properties: W3C's names, and RocketMQ's own one for reading."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from opentelemetry import propagate, trace
from opentelemetry.context import Context
from opentelemetry.trace import SpanContext

TRACE_CONTEXT: Final = "TRACE_CONTEXT"
"""RocketMQ's property for one ``traceparent`` (``MessageConst.PROPERTY_TRACE_CONTEXT``)."""


def context_of(message: Any) -> Context:
    """The context that a received message was sent in, for programs that poll: ``attach`` it, or link to it."""
    return _extract(message.properties)


def creation_context(properties: Mapping[str, str]) -> SpanContext | None:
    """What a span can link to; ``None`` if the message was sent without a trace."""
    found = trace.get_current_span(_extract(properties)).get_span_context()
    return found if found.is_valid else None


def _extract(properties: Mapping[str, str]) -> Context:
    carrier = dict(properties)
    if TRACE_CONTEXT in carrier:
        carrier.setdefault("traceparent", carrier[TRACE_CONTEXT])
    # An empty context: what is current here has nothing to do with who sent the message.
    return propagate.extract(carrier, context=Context())
