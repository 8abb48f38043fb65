"""Queues that grow and queues that only fluctuate; servers that slow down and ones that do not."""

from __future__ import annotations

import numpy as np
import pytest

from calculator.steady import gets_slower, queue_grows

NS_PER_S = 1e9


def queue(
    arrive_per_s: float, serve_per_s: float, count: int, seed: int, servers: int = 1
) -> tuple[list[int], list[int]]:
    """Sends and ends of a queue with Poisson arrivals and exponential service, in ns."""
    rng = np.random.default_rng(seed)
    arrivals = np.cumsum(rng.exponential(1 / arrive_per_s, count))
    arrivals -= arrivals[0]
    free = np.zeros(servers)
    ends = []
    for at in arrivals:
        first = int(free.argmin())
        free[first] = max(at, free[first]) + rng.exponential(servers / serve_per_s)
        ends.append(free[first])
    return [int(at * NS_PER_S) for at in arrivals], sorted(int(at * NS_PER_S) for at in ends)


def seen(sent: list[int], done: list[int]) -> bool:
    """Does the queue look as if it grows, at any second of the arrivals?"""
    for now in range(int(NS_PER_S), sent[-1], int(NS_PER_S)):
        if queue_grows([at for at in sent if at <= now], [at for at in done if at <= now], now):
            return True
    return False


@pytest.mark.parametrize("serve_per_s", [3.0, 10.0, 15.0])
def test_a_queue_that_grows_is_seen(serve_per_s: float) -> None:
    assert all(seen(*queue(20, serve_per_s, 1200, seed)) for seed in range(5))


@pytest.mark.parametrize(("serve_per_s", "servers"), [(40.0, 1), (40.0, 32), (28.0, 8)])
def test_a_stable_queue_is_left_alone(serve_per_s: float, servers: int) -> None:
    wrong = sum(seen(*queue(20, serve_per_s, 1200, seed, servers)) for seed in range(20))
    assert wrong <= 1


def test_too_little_to_see_a_queue() -> None:
    assert not queue_grows([], [], 0)
    assert not queue_grows(range(9), [], 10)
    sent = [int(i * NS_PER_S / 10) for i in range(30)]
    assert not queue_grows(sent, sent[:10], sent[-1])


def test_a_server_that_slows_down_is_seen() -> None:
    rng = np.random.default_rng(1)
    noise = rng.lognormal(0, 0.3, 90)
    assert gets_slower(list(noise * np.linspace(1, 2, 90)))
    assert not gets_slower(list(noise * np.linspace(2, 1, 90)))  # it gets faster
    assert not gets_slower(list(noise * np.linspace(1, 1.1, 90)))  # hardly


def test_chance_alone_is_no_slowing() -> None:
    rng = np.random.default_rng(2)
    wrong = sum(gets_slower(list(rng.lognormal(0, 1.0, 60))) for _ in range(2000))
    assert wrong <= 6  # 0.1 % of them


def test_too_few_to_see_a_slowing() -> None:
    assert not gets_slower([])
    assert not gets_slower([1.0] * 14 + [9.0] * 14)
    assert not gets_slower([None] * 60)
