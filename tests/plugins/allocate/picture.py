"""The picture of the documentation: the ring before and after a client leaves, and queues in their rooms.

``python -m tests.plugins.allocate.picture`` writes it; a test keeps it true.
"""

from __future__ import annotations

from math import cos, pi, sin
from pathlib import Path
from typing import Final

from verniermq.kernel import MessageQueue
from verniermq.plugins.allocate.averagely import averagely
from verniermq.plugins.allocate.consistent_hash import Ring, queue_key, ring_hash
from verniermq.plugins.allocate.machine_room_nearby import MachineRoomNearby, RoomsByPrefix

WHERE: Final = Path(__file__).parents[3] / "docs" / "plugins" / "allocate.svg"
CLIENTS: Final = ("10.0.0.1@1001", "10.0.0.2@1002", "10.0.0.3@1003")
COLOURS: Final = ("#2a9d8f", "#e9a03b", "#c8553d", "#5b6fb5", "#8a5fa8")
RADIUS: Final = 110


def picture() -> str:
    parts = [
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 700 560" font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="#ffffff"/>',
        *_ring(170, 170, CLIENTS, "consistent_hash, three clients"),
        *_ring(520, 170, CLIENTS[:2], "… after 10.0.0.3 left: only its queues moved"),
        *_rooms(340),
        "</svg>",
        "",
    ]
    return "\n".join(parts)


def _ring(x: int, y: int, clients: tuple[str, ...], title: str) -> list[str]:
    ring = Ring.of(clients, 10)
    parts = [
        f'<text x="{x}" y="22" text-anchor="middle" font-weight="bold">{title}</text>',
        f'<circle cx="{x}" cy="{y}" r="{RADIUS}" fill="none" stroke="#999999"/>',
        f'<text x="{x}" y="{y - 4}" text-anchor="middle" font-size="10">● points of clients</text>',
        f'<text x="{x}" y="{y + 12}" text-anchor="middle" font-size="10">numbers: queues</text>',
    ]
    for point, owner in zip(ring.points, ring.owners, strict=True):
        px, py = _place(x, y, RADIUS, point)
        parts.append(f'<circle cx="{px}" cy="{py}" r="5" fill="{COLOURS[CLIENTS.index(owner)]}"/>')
    for number in range(8):
        key = queue_key(MessageQueue("TopicTest", "broker-a", number))
        owner = ring.owner(key) or ""
        px, py = _place(x, y, RADIUS + 18, ring_hash(key))
        colour = COLOURS[CLIENTS.index(owner)]
        parts.append(f'<circle cx="{px}" cy="{py}" r="8" fill="#ffffff" stroke="{colour}" stroke-width="2"/>')
        parts.append(f'<text x="{px}" y="{py + 3.5:.1f}" text-anchor="middle" font-size="10">{number}</text>')
    return parts


def _place(x: int, y: int, radius: int, hash_value: int) -> tuple[float, float]:
    """Clockwise, with 0 at the top."""
    angle = 2 * pi * hash_value / 2**32
    return round(x + radius * sin(angle), 1), round(y - radius * cos(angle), 1)


def _rooms(top: int) -> list[str]:
    clients = ["r1-c0", "r1-c1", "r2-c0"]
    queues = [MessageQueue("t", f"r{room}-broker", number) for room in (1, 2, 3) for number in range(4)]
    strategy = MachineRoomNearby(averagely, RoomsByPrefix("-"))
    owner_of = {queue: client for client in clients for queue in strategy(client, queues, clients)}
    parts = [
        f'<text x="350" y="{top}" text-anchor="middle" font-weight="bold">machine_room_nearby over averagely: '
        "room 3 has no client, so all share it</text>"
    ]
    for column, room in enumerate((1, 2, 3)):
        x = 30 + column * 220
        parts.append(f'<rect x="{x}" y="{top + 16}" width="200" height="150" rx="8" fill="#f6f6f2" stroke="#999999"/>')
        parts.append(f'<text x="{x + 10}" y="{top + 36}">room {room}</text>')
        here = [client for client in clients if client.startswith(f"r{room}-")]
        for row, client in enumerate(here):
            colour = COLOURS[clients.index(client)]
            cx = x + 10 + row * 94
            parts.append(f'<rect x="{cx}" y="{top + 48}" width="86" height="30" rx="4" fill="{colour}"/>')
            parts.append(f'<text x="{cx + 43}" y="{top + 67}" text-anchor="middle" fill="#ffffff">{client}</text>')
        if not here:
            parts.append(f'<text x="{x + 10}" y="{top + 67}" fill="#777777">no client</text>')
        for queue in [queue for queue in queues if queue.broker_name.startswith(f"r{room}-")]:
            qx, colour = x + 10 + queue.queue_id * 46, COLOURS[clients.index(owner_of[queue])]
            parts.append(
                f'<rect x="{qx}" y="{top + 104}" width="40" height="40" rx="4" fill="#ffffff" stroke="{colour}" '
                'stroke-width="3"/>'
            )
            parts.append(f'<text x="{qx + 20}" y="{top + 129}" text-anchor="middle">q{queue.queue_id}</text>')
    parts.append(
        f'<text x="350" y="{top + 192}" text-anchor="middle" font-size="10">a queue has the colour of the client '
        "that reads it</text>"
    )
    return parts


if __name__ == "__main__":
    WHERE.write_text(picture(), encoding="utf-8")
