"""`HealthReports` in memory, with a clock to set; verified by the tests of the real one."""

from gateway_core.providers.health import EXPIRE_SECONDS, HealthReports
from tests.fakes.redis import FakeRedis


class FakeHealthReports(FakeRedis, HealthReports):
    """The reports of one gateway."""

    def __init__(self) -> None:
        super().__init__()
        self._reports: dict[str, tuple[float, bytes]] = {}

    async def write(self, process: str, report: bytes) -> None:
        self._check_away()
        self._reports[process] = (self.now + EXPIRE_SECONDS, report)

    async def read(self) -> list[bytes]:
        self._check_away()
        return [report for until, report in self._reports.values() if self.now < until]
