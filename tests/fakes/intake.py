"""`IntakeStop` in memory, with a clock to set; verified by the tests of the real one."""

from tests.fakes.redis import FakeRedis


class FakeIntakeStop(FakeRedis):
    """The mark of one gateway."""

    def __init__(self) -> None:
        super().__init__()
        self._until = 0.0

    async def set(self, seconds: int) -> None:
        self._check_away()
        self._until = self.now + seconds

    async def clear(self) -> None:
        self._check_away()
        self._until = 0.0

    async def is_set(self) -> bool:
        self._check_away()
        return self.now < self._until
