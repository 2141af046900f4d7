"""`IntakeStop` in memory, with a clock to set; verified by the tests of the real one."""

from gateway_core.redis.link import CountersUnavailable


class FakeIntakeStop:
    """The mark of one gateway. `now` is the store's clock, `away` makes it unreachable."""

    def __init__(self) -> None:
        self.now = 0.0
        self.away = False
        self._until = 0.0

    async def set(self, seconds: int) -> None:
        self._check()
        self._until = self.now + seconds

    async def clear(self) -> None:
        self._check()
        self._until = 0.0

    async def is_set(self) -> bool:
        self._check()
        return self.now < self._until

    def _check(self) -> None:
        if self.away:
            raise CountersUnavailable("away")
