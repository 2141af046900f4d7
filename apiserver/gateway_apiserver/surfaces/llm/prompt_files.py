"""Files of an account that a prompt names by `file_id`, inlined into the call (contract §7.5)."""

import asyncio
import mimetypes

from gateway_apiserver.surfaces.files.finder import FileFinder
from gateway_core.api.errors import NotFound, TooLarge, Unavailable
from gateway_core.files.files import read_file
from gateway_core.llm.formats.bodies import FileContent, inline_files
from gateway_core.llm.formats.calls import LlmCall
from gateway_core.storage.content import ContentDamaged, read_segments, stream_content
from gateway_core.storage.limits import INPUT_SECONDS, StoreTimeout
from gateway_core.storage.objects import ObjectMissing, ObjectStore, StoreUnavailable

MOST_FILES = 16
MOST_BYTES = 16 * 1024 * 1024
"""Bytes of all files of a call: as base64 they have room in a body of 32 MiB."""


class PromptFiles:
    """Reads the files that calls name."""

    def __init__(self, finder: FileFinder, store: ObjectStore) -> None:
        self._finder = finder
        self._store = store
        self._timeout = StoreTimeout(INPUT_SECONDS)

    async def inline(self, call: LlmCall, account: str) -> LlmCall:
        """The call with the content of its files.

        Raises:
            NotFound: a file is unknown, another account's, or of another purpose than `user_data`.
            TooLarge: they are too many, or too large together.
            Unavailable: files cannot be read now.
        """
        if len(call.files) > MOST_FILES:
            raise TooLarge(f"A prompt may name at most {MOST_FILES} files.")
        contents: dict[str, FileContent] = {}
        left = MOST_BYTES
        for reference in call.files:
            # a file that is named twice is inlined twice
            known = contents.get(reference.file_id)
            if known is None:
                known = await self._read(account, reference.file_id, reference.param, left)
                contents[reference.file_id] = known
            left -= len(known.data)
            if left < 0:
                raise _too_large()
        return await asyncio.to_thread(inline_files, call, contents)

    async def _read(self, account: str, file_id: str, param: str, most: int) -> FileContent:
        obj = await self._finder.find(account, file_id, param=param)
        record = read_file(obj)
        if record is None or record.purpose != "user_data":
            raise NotFound(
                f"There is no file {file_id} for prompts.", code="file_not_found", param=param
            )
        if record.bytes > most:
            raise _too_large()
        try:
            async with self._timeout.bound():
                chunks = stream_content(self._store, read_segments(obj), 0, record.bytes)
                data = b"".join([chunk async for chunk in chunks])
        except ObjectMissing as error:
            raise NotFound(
                f"There is no file {file_id}.", code="file_not_found", param=param
            ) from error
        except (StoreUnavailable, ContentDamaged) as error:
            raise Unavailable("Files cannot be read now.") from error
        kind = mimetypes.guess_type(record.filename)[0] or "application/octet-stream"
        return FileContent(record.filename, kind, data)


def _too_large() -> TooLarge:
    return TooLarge(f"The files of a prompt may have at most {MOST_BYTES} bytes together.")
