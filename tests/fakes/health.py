"""`HealthReports` in memory, with a clock to set; verified by the tests of the real one."""

from gateway_core.providers.health import EXPIRE_SECONDS, HealthReports
from gateway_core.redis.link import CountersUnavailable


class FakeHealthReports(HealthReports):
    """The reports of one gateway. `now` is the store's clock, `away` makes it unreachable."""

    def __init__(self) -> None:
        self.now = 0.0
        self.away = False
        self._reports: dict[str, tuple[float, bytes]] = {}

    async def write(self, process: str, report: bytes) -> None:
        self._check()
        self._reports[process] = (self.now + EXPIRE_SECONDS, report)

    async def read(self) -> list[bytes]:
        self._check()
        return [report for until, report in self._reports.values() if self.now < until]

    def _check(self) -> None:
        if self.away:
            raise CountersUnavailable("away")
