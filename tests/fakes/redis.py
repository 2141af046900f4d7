"""The base of the fakes of stores in Redis."""

from gateway_core.redis.link import CountersUnavailable


class FakeRedis:
    """A store of one process. `now` is its clock, `away` makes it unreachable."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = now
        self.away = False

    def _check_away(self) -> None:
        if self.away:
            raise CountersUnavailable("away")
