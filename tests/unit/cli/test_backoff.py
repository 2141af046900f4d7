"""The delays before a process that died is started again."""

from gateway_cli.local.backoff import Backoff


def test_delays_double_up_to_the_longest() -> None:
    backoff = Backoff()
    delays = [backoff.next_delay(alive_seconds=1) for _ in range(9)]
    assert delays == [0.5, 1, 2, 4, 8, 16, 30, 30, 30]


def test_a_steady_life_begins_anew() -> None:
    backoff = Backoff()
    for _ in range(5):
        backoff.next_delay(alive_seconds=1)
    assert backoff.next_delay(alive_seconds=60) == 0.5
    assert backoff.next_delay(alive_seconds=59) == 1
