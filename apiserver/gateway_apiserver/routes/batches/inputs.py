"""The File that a Batch is made of, found by its id (contract §5.1)."""

import asyncio
import time
from collections.abc import Callable

from gateway_apiserver.routes.compat.identities import check_id, unknown
from gateway_core.contract.errors import Unavailable
from gateway_core.contract.file import GatewayFile
from gateway_core.contract.ids import IdMint
from gateway_core.contract.names import FILE_PREFIX
from gateway_core.domain.files import read_file
from gateway_core.ports.records import Missing, Object, RecordError, Records

READ_SECONDS = 5.0


class InputFiles:
    """Reads Files for the accounts that own them. `clock` gives Unix seconds."""

    def __init__(
        self, records: Records, mint: IdMint, *, clock: Callable[[], float] = time.time
    ) -> None:
        self._records = records
        self._mint = mint
        self._clock = clock

    async def find(self, account: str, wire_id: str, *, param: str | None = None) -> Object:
        """The GatewayFile. NotFound where it is nobody's, another's or gone; Unavailable."""
        name = check_id(self._mint, FILE_PREFIX, account, wire_id, param=param)
        try:
            async with asyncio.timeout(READ_SECONDS):
                obj = await self._records.get(GatewayFile.plural, name)
        except Missing:
            raise unknown(FILE_PREFIX, wire_id, param=param) from None
        except (RecordError, TimeoutError) as error:
            raise Unavailable("Files cannot be read now.", retry_after=1) from error
        record = read_file(obj)
        if record is None or record.account != account or record.purpose == "temporary":
            raise unknown(FILE_PREFIX, wire_id, param=param)
        if record.is_gone(self._clock()):
            raise unknown(FILE_PREFIX, wire_id, param=param)
        return obj
