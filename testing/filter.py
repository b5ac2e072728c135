"""The contract of every filter plugin: run it on your own.

``check_filter(compile_filter, good, bad)`` asserts what the kernel relies on when it asks ``compile_filter``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from verniermq.kernel.errors import SubscriptionParseFailed
from verniermq.kernel.message import MessageFilter, Subscription

CompileFilter = Callable[[Subscription], MessageFilter | None]

ODD_VALUES = ("", " ", "0", "-1", "3.5", "NaN", "true", "x", "x" * 30_000, "9" * 5_000, "é😀", "\x00", "'", "1e9")


def check_filter(compile_filter: CompileFilter, good: Iterable[Subscription], bad: Iterable[Subscription]) -> None:
    """Assert that a filter can be asked about anything.

    A type that is not its own is left to others. A ``good`` subscription becomes a filter that answers yes or no
    for any properties, without raising, changing them, or answering differently the second time. A ``bad`` one is
    refused with ``SubscriptionParseFailed`` and nothing else, with a text that a person can read.
    """
    good, bad = list(good), list(bad)
    stranger = Subscription("topic", "anything", "no such type")
    assert compile_filter(stranger) is None, "an expression type of somebody else was answered"

    for subscription in good:
        compiled = compile_filter(subscription)
        assert compiled is not None, f"{subscription} was not answered"
        for code in compiled.tag_codes or ():
            assert -(2**31) <= code < 2**31, f"{code} is no hash of 32 bits, signed"
        if compiled.test is not None:
            _check_test(compiled.test, subscription)
        again = compile_filter(subscription)
        assert again is not None, f"{subscription} was answered only once"
        assert again.tag_codes == compiled.tag_codes, f"{subscription} got other tags the second time"

    for subscription in bad:
        assert _refusal(compile_filter, subscription).strip(), "a refusal must say what is wrong"


def _refusal(compile_filter: CompileFilter, subscription: Subscription) -> str:
    try:
        compile_filter(subscription)
    except SubscriptionParseFailed as refusal:
        return str(refusal)
    raise AssertionError(f"{subscription} was not refused")


def _check_test(test: Callable[..., bool], subscription: Subscription) -> None:
    names = {word for word in subscription.expression.replace("=", " ").split() if word.isidentifier()} or {"a"}
    for value in ODD_VALUES:
        for properties in ({}, dict.fromkeys(names, value), {min(names): value}):
            before = dict(properties)
            answer = test(properties)
            assert isinstance(answer, bool), f"{subscription} answered {answer!r}"
            assert properties == before, "a filter must not change a message"
            assert test(properties) is answer, f"{subscription} answered differently the second time"
