"""Hands notices to the operator replica that owns a task's shard; used by the API's `compose`.

The replicas are pods of a StatefulSet, so the owner's name follows from the task's name alone.
"""

import aiohttp

from gateway_core.contract.names import SHARDS, shard_of
from gateway_core.contract.notices import Notice, NoticeSigner
from gateway_core.ports.notices import NoticeUndelivered

_SECONDS = 3.0
_MOST_CONNECTIONS = 32
ORDINAL = "{ordinal}"


class OperatorLink:
    """Fulfils `ports.notices.NoticeSink`. An async context manager.

    `url` is where a replica's inner port is, with `{ordinal}` for its number; `replicas` how many
    there are.
    """

    def __init__(self, url: str, replicas: int, signer: NoticeSigner) -> None:
        self._url = url.rstrip("/")
        self._replicas = replicas
        self._signer = signer

    async def __aenter__(self) -> "OperatorLink":
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=_MOST_CONNECTIONS),
            timeout=aiohttp.ClientTimeout(total=_SECONDS),
            cookie_jar=aiohttp.DummyCookieJar(),
            trust_env=False,
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    def find_owner(self, name: str) -> str:
        """The address of the replica that works the task called `name`."""
        ordinal = shard_of(name) % min(self._replicas, SHARDS)
        return self._url.replace(ORDINAL, str(ordinal))

    async def deliver(self, notice: Notice) -> None:
        """Hands on a notice. NoticeUndelivered."""
        url = self.find_owner(notice.name) + self._signer.sign(notice)
        try:
            async with self._session.post(url, allow_redirects=False) as answer:
                status = answer.status
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise NoticeUndelivered(
                f"the operator did not answer: {type(error).__name__}"
            ) from None
        if status != 204:
            raise NoticeUndelivered(f"the operator answered with HTTP status {status}")
