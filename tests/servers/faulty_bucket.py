"""An S3 server behind `S3Faults`, usable from any thread."""

from tests.servers.s3_faults import S3Faults
from tests.servers.threadserver import ThreadServer


class FaultyBucket(ThreadServer):
    """Forwards to the S3 server at `target`; `faults` lays faults on calls."""

    def __init__(self, target: str) -> None:
        super().__init__()
        self.faults = S3Faults(target)

    @property
    def url(self) -> str:
        """Where it listens."""
        return self.faults.url

    async def open(self) -> None:
        """Begins to serve."""
        await self.faults.__aenter__()

    async def close(self) -> None:
        """Serves no more."""
        await self.faults.__aexit__()
