"""The compiled lane beside the chain in Python, for as long as one likes: ``make lane-campaign``.

Two kinds of rounds, each with a seed of its own, each on two brokers, one of them without the lane:

- mixed: streams of frames as clients send them and as nobody would, cut into chunks anywhere;
- mutated: single frames with bytes changed, put in and taken out, most of them with their lengths put right again.

Log, queues, key index and answers have to be equal, byte by byte. In mixed rounds with an odd seed turns of the loop
end anywhere, and answers may change places. A round that fails prints its kind and seed, and where what is left
differs; ``--kind mixed --seed 7 --rounds 1`` runs it again. ``--record`` appends a line for each kind, and one for a
round that fails, to ``bench/results/lane.jsonl``.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import random
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import anyio
import click
import pytest

from tests.kernel import frames
from tests.kernel.test_lane import count, meet
from tests.kernel.twins import Twin, hasty, standing_still, take_plain_way, twin
from verniermq.kernel.accel.lane import compiled_lane

RECORD = Path(__file__).parents[2] / "bench/results/lane.jsonl"
MIXED = 1000
MUTATED = 10_000
PIECES = (
    b"\\u0001", b"\\u0002", b"\\", b'"', b",", b"\x01", b"\x02", b"0", b"-", b"\\ud800", b"\xe4\xb8\xad", b"\xff", b"{",
    b"}", b":", b"\\u00011\\u0002", b"DELAY\\u00011\\u0002", b"KEYS\x01a b\x02", b"UNIQ_KEY\x01", b"\x00", b"\x7f",
    b" ",
)  # fmt: skip


def mutated(seed: int, count: int) -> Iterator[bytes]:
    """Single frames, most of them with something wrong."""
    chance = random.Random(seed)
    for number in range(0, count * 8, 8):
        binary = float(chance.random() < 0.3)
        text = frames.plain_properties(number, chance)
        if chance.random() < 0.6:
            whole = frames.frame(number, frames.SEND, text, b"x" * 20, chance, binary=binary)
        else:
            body = b"".join(
                frames.element(b"y" * chance.randrange(9), frames.plain_properties(number + i, chance).encode())
                for i in range(chance.randrange(1, 4))
            )
            whole = frames.frame(number, frames.BATCH, text, body, chance, binary=binary)
        data = bytearray(whole)
        header = int.from_bytes(data[5:8], "big")
        body_size = len(data) - 8 - header
        for _ in range(chance.choice([0, 1, 1, 1, 2, 4])):
            at = chance.randrange(8, 8 + header) if chance.random() < 0.6 else chance.randrange(len(data))
            kind = chance.randrange(6)
            if kind == 0:
                data[at] = chance.randrange(256)
            elif kind == 1:
                data[at] ^= 1 << chance.randrange(8)
            elif kind == 2:
                data[at:at] = chance.choice(PIECES)
            elif kind == 3:
                del data[at : at + chance.randrange(1, 4)]
            elif kind == 4:
                data[at] = chance.choice(b'{}[]":,\\0123456789abefghijn')
            else:
                data[at:at] = data[at : at + chance.randrange(1, 9)]
            if len(data) < 9:
                break
        if chance.random() < 0.9 and len(data) >= 8:  # so that the inside is reached
            inside = max(len(data) - 8 - body_size, 0)
            data[0:4] = (len(data) - 4).to_bytes(4, "big")
            data[4:8] = (inside & 0xFFFFFF | whole[4] << 24).to_bytes(4, "big")
        yield bytes(data)


def in_any_order(answers: bytes) -> bytes:
    """An answer that waits for the disk, as that of a new topic's first send, comes before or after the next turn's."""
    each, start = [], 0
    while start < len(answers):
        end = start + 4 + int.from_bytes(answers[start : start + 4], "big")
        each.append(answers[start:end])
        start = end
    return b"".join(sorted(each))


def headers(answers: bytes) -> bytes:
    """Answers without their bodies: what was mutated into another request may be answered with times and ports."""
    kept, start = b"", 0
    while start < len(answers):
        length, header = (
            int.from_bytes(answers[start : start + 4], "big"),
            int.from_bytes(answers[start + 5 : start + 8], "big"),
        )
        kept += answers[start + 4 : start + 8 + header]
        start += 4 + length
    return kept


async def _give_mutated(one: Twin, seed: int, count: int, digest: hashlib._Hash) -> None:
    chance = random.Random(seed)
    for number, data in enumerate(mutated(seed, count)):
        connection = one.connection
        if connection.closed or connection._decoder._needed or number % 50 == 0:
            one.connect()  # what is unfinished would eat the next one
        binary = data[4:5] == b"\x01"
        good = frames.frame(7, frames.SEND, "UNIQ_KEY\x01U1\x02", b"", random.Random(1), binary=float(binary))
        if connection.closed or (connection.language, connection.version, connection.binary) != ("JAVA", 479, binary):
            digest.update(headers(await one.give(good)))
        digest.update(headers(await one.give(good + data if chance.random() < 0.3 else data)))
        digest.update(b"closed" if one.connection.closed else b"open")


async def _round(kind: str, seed: int, *, compiled: bool) -> tuple[dict[str, bytes], float]:
    """All that a broker leaves, and the share of the bytes that the lane served."""
    chance = random.Random(seed)
    is_hasty = kind == "mixed" and seed % 2 == 1
    clock, others = (hasty(seed), frames.TIMELESS) if is_hasty else (standing_still, frames.ANY)
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        if not compiled:
            take_plain_way(patch)
        async with twin(Path(folder), patch, turn_clock=clock) as one:
            counting = count(one) if compiled else None
            # A new topic's first send waits for the disk; where turns end decides behind which others it comes.
            await meet(one, (*frames.TOPICS, frames.RETRY) if is_hasty else frames.TOPICS)
            answers = hashlib.sha256()
            if kind == "mixed":
                plain, binary = chance.choice([0.6, 0.97, 0.995]), chance.choice([0.0, 0.1, 1.0])
                sends = frames.mixed(seed, MIXED, plain=plain, binary=binary, other_codes=others)
                for chunk in frames.in_chunks(sends, seed):
                    answer = await one.give(chunk)
                    answers.update(in_any_order(answer) if is_hasty else answer)
            else:
                await _give_mutated(one, seed, MUTATED, answers)
            share = 0.0 if counting is None else counting.bytes / max(counting.given, 1)
            return {"answers": answers.digest(), **one.left()}, share


def differences(with_lane: dict[str, bytes], without: dict[str, bytes]) -> dict[str, str]:
    """By name, how long both are and where they begin to differ."""
    found = {}
    for name in sorted({*with_lane, *without}):
        one, other = with_lane.get(name, b""), without.get(name, b"")
        if one != other:
            at = next(
                (i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other))
            )
            shown = f"{one[at : at + 40].hex()} {other[at : at + 40].hex()}"
            found[name] = f"{len(one)} and {len(other)} bytes, from {at} on: {shown}"
    return found


def record(kind: str, seed: int, rounds: int, frames: int, seconds: float, different: dict[str, str]) -> None:
    """Note rounds without a difference, or one that has some: of the compiled lane's, then of the other's."""
    commit = subprocess.run(
        ["git", "rev-parse", "--short=10", "HEAD"],
        cwd=Path(__file__).parent,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    line = {
        "kind": kind, "commit": commit.stdout.strip(), "date": time.strftime("%Y-%m-%d"), "seed": seed,
        "rounds": rounds, "frames": frames, "differences": len(different), "seconds": round(seconds),
        "sanitizer": "asan" in os.environ.get("LD_PRELOAD", ""), **({"different": different} if different else {}),
    }  # fmt: skip
    with RECORD.open("a") as file:
        file.write(json.dumps(line) + "\n")


@click.command(help=__doc__)
@click.option("--kind", type=click.Choice(["both", "mixed", "mutated"]), default="both", show_default=True)
@click.option("--rounds", default=100, show_default=True, help="Of each kind.")
@click.option("--seed", default=None, type=int, help="Of the first round; drawn if it is not given.")
@click.option("--record", "recorded", is_flag=True, help="Keep what was found.")
def main(kind: str, rounds: int, seed: int | None, recorded: bool) -> None:
    if compiled_lane() is None:
        raise click.ClickException("the lane is not compiled: make fast")
    logging.disable(logging.CRITICAL)
    first = random.randrange(2**31) if seed is None else seed
    kinds = {"mixed": MIXED, "mutated": MUTATED} if kind == "both" else {kind: MIXED if kind == "mixed" else MUTATED}
    began = time.monotonic()
    equal = dict.fromkeys(kinds, 0)
    try:
        for number in range(rounds):
            for each, count in kinds.items():
                with_lane, share = anyio.run(lambda: _round(each, first + number, compiled=True))  # noqa: B023
                without, _ = anyio.run(lambda: _round(each, first + number, compiled=False))  # noqa: B023
                different = differences(with_lane, without)
                if different:
                    if recorded:
                        record(each, first + number, 1, count, 0, different)
                    shown = "".join(f"\n{name}: {what}" for name, what in different.items())
                    raise click.ClickException(f"{each} round with seed {first + number} differs{shown}")
                equal[each] += 1
                click.echo(
                    f"{each:8} seed {first + number}: {count} frames equal, {share:.0%} of their bytes by the lane, "
                    f"{(number + 1) * count} in {time.monotonic() - began:.0f} s"
                )
    finally:  # also those of a run that is interrupted
        logging.disable(logging.NOTSET)
        for each, done in equal.items() if recorded else ():
            if done:
                record(each, first, done, done * kinds[each], time.monotonic() - began, {})


if __name__ == "__main__":
    main()
