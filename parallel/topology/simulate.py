"""Plays the messages of a schedule: how long each round takes on real links, and what the buffers hold in the end.

A round lasts until its last message is there and added. Messages that share a wire, a port or a path share its
bandwidth: a message takes the latency of its link and the time that the fullest of its ways needs for all it carries.
Links carry each direction at full speed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from mindspeed_ms.parallel.topology.cluster import Cluster, Link
from mindspeed_ms.parallel.topology.schedules import Schedule

Ways = list[tuple[tuple, float]]
LinkOf = Callable[[int, int], Link]
PathsOf = Callable[[int, int], Ways]


def links_of(cluster: Cluster, slots: Sequence[int]) -> LinkOf:
    """The link between two ranks that sit on these slots."""
    return lambda source, target: cluster.link(slots[source], slots[target])


def _ways(source: int, target: int, link: Link) -> Ways:
    """What a message occupies, each with its bandwidth."""
    if not link.shared:
        return [(("wire", source, target), link.bandwidth)]
    return [(("out", source, link.kind), link.bandwidth), (("in", target, link.kind), link.bandwidth)]


def run(
    schedule: Schedule, nbytes: float, link: Link | LinkOf, gamma: float = 0.0, paths: PathsOf | None = None
) -> float:
    """Seconds until the last message of the last round is there.

    link: one for all pairs, or a function of two ranks. paths: more that a message between two ranks occupies, such
    as the one bridge between two halves of a server: ((name, ...), bytes a second) each.
    """
    link_of: LinkOf = (lambda source, target: link) if isinstance(link, Link) else link
    block = nbytes / schedule.blocks
    return sum(_round(messages, block, link_of, gamma, paths) for messages in schedule.rounds)


def _round(messages: Sequence[Any], block: float, link_of: LinkOf, gamma: float, paths: PathsOf | None) -> float:
    load: dict[tuple, float] = {}
    routes = []
    added: dict[int, float] = {}
    for message in messages:
        if message.source == message.target:
            continue
        size = len(message.taken) * block
        link = link_of(message.source, message.target)
        ways = _ways(message.source, message.target, link)
        if paths:
            ways = ways + paths(message.source, message.target)
        for way, _ in ways:
            load[way] = load.get(way, 0.0) + size
        routes.append((link.latency, ways))
        if message.add:
            added[message.target] = added.get(message.target, 0.0) + size
    slowest = max((late + max(load[way] / speed for way, speed in ways) for late, ways in routes), default=0.0)
    return slowest + gamma * max(added.values(), default=0.0)


def deliver(schedule: Schedule, buffers: Sequence[Sequence[Any]]) -> list[list[Any]]:
    """What each rank's blocks hold in the end; blocks are anything that can be added (numbers, arrays).

    buffers[rank][block]; messages of a round are all sent before any arrives.
    """
    held = [list(buffer) for buffer in buffers]
    if schedule.operation == "all_to_all":
        held = [[*buffer, *([None] * 2 * len(buffer))] for buffer in held]
    for messages in schedule.rounds:
        flying = [[held[m.source][block] for block in m.taken] for m in messages]
        for m, values in zip(messages, flying, strict=True):
            for place, value in zip(m.put, values, strict=True):
                held[m.target][place] = held[m.target][place] + value if m.add else value
    return held
