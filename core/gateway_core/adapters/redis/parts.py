"""`PartLedger` on Redis. Chosen by the processes' `compose` modules.

One key for each Upload, told in `lua/parts/parts.lua`; it counts only while it carries the `run_id`
of the running server.
"""

from collections.abc import Mapping

from gateway_core.adapters.redis.link import NoteRoundTrip, RedisLink, Reply, check_reply
from gateway_core.adapters.redis.scripts import Argument, Script, ScriptCall, load_script
from gateway_core.adapters.redis.storage import check_size
from gateway_core.ports.counters import CountersStale, CountersUnavailable
from gateway_core.ports.parts import PartCaps, PartsStale
from gateway_core.ports.storage import StorageUnavailable

KEPT_SECONDS = 7200


def _load(name: str) -> Script:
    return load_script("parts/parts", f"parts/{name}")


CLAIM = _load("claim")
RELEASE = _load("release")
ESTABLISH = _load("establish")


class RedisParts:
    """What Uploads' parts take, in the Redis at `url`; for one event loop. See `PartLedger`.

    `namespace` is the gateway's, as for `RedisStorage`.
    """

    def __init__(
        self,
        url: str,
        *,
        namespace: str = "default",
        max_connections: int = 4,
        note: NoteRoundTrip | None = None,
    ) -> None:
        self._head = f"gw:{{{namespace}/"
        self._link = RedisLink(url, max_connections=max_connections, note=note)

    async def close(self) -> None:
        """Closes all connections."""
        await self._link.close()

    async def claim(self, account: str, upload: str, part: str, size: int, caps: PartCaps) -> bool:
        """See the port."""
        told = (part, check_size(size), caps.parts, caps.bytes)
        return bool(await self._call(CLAIM, account, upload, *told))

    async def release(self, account: str, upload: str, part: str) -> None:
        """See the port."""
        await self._call(RELEASE, account, upload, part)

    async def establish(self, account: str, upload: str, parts: Mapping[str, int]) -> None:
        """See the port."""
        flat = (told for part, size in parts.items() for told in (part, check_size(size)))
        await self._call(ESTABLISH, account, upload, *flat)

    async def forget(self, account: str, upload: str) -> None:
        """See the port."""
        await self._run((b"DEL", self._name_key(account, upload)))

    def _name_key(self, account: str, upload: str) -> str:
        return f"{self._head}{account}}}:parts:{upload}"

    async def _call(self, script: Script, account: str, upload: str, *told: Argument) -> Reply:
        key = self._name_key(account, upload)
        return await self._run(ScriptCall(script, (key,), (KEPT_SECONDS, *told)))

    async def _run(self, command: ScriptCall | tuple[Argument, ...]) -> Reply:
        try:
            return check_reply((await self._link.run([command]))[0])
        except CountersStale as error:
            raise PartsStale(str(error)) from error
        except CountersUnavailable as error:
            raise StorageUnavailable(str(error)) from error
