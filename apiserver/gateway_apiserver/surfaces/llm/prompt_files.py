"""Files of an account that a prompt names by `file_id`, inlined into the call (contract §7.5)."""

import asyncio
import mimetypes
from collections.abc import Mapping
from dataclasses import dataclass

from gateway_apiserver.surfaces.files.finder import FileFinder
from gateway_core.api.errors import NotFound, TooLarge, Unavailable
from gateway_core.api.resource import Object
from gateway_core.files.files import read_file
from gateway_core.llm.formats.bodies import FileContent, inline_files
from gateway_core.llm.formats.calls import LlmCall
from gateway_core.storage.content import ContentDamaged, read_segments, stream_content
from gateway_core.storage.limits import INPUT_SECONDS, StoreTimeout
from gateway_core.storage.objects import ObjectMissing, ObjectStore, StoreUnavailable

MOST_FILES = 16
MOST_BYTES = 16 * 1024 * 1024
"""Bytes of all files of a call: as base64 they have room in a body of 32 MiB."""


@dataclass(frozen=True, slots=True)
class FoundFiles:
    """The files of a call by id, unread. `inlined_bytes` is what all of them add to its body."""

    objects: Mapping[str, Object]
    params: Mapping[str, str]
    inlined_bytes: int


class PromptFiles:
    """Reads the files that calls name."""

    def __init__(self, finder: FileFinder, store: ObjectStore) -> None:
        self._finder = finder
        self._store = store
        self._timeout = StoreTimeout(INPUT_SECONDS)

    async def find(self, call: LlmCall, account: str) -> FoundFiles:
        """Return the files that a call names.

        Raises:
            NotFound: a file is unknown, another account's, or of another purpose than `user_data`.
            TooLarge: they are too many, or too large together.
            Unavailable: files cannot be found now.
        """
        if len(call.files) > MOST_FILES:
            raise TooLarge(f"A prompt may name at most {MOST_FILES} files.")
        objects: dict[str, Object] = {}
        params: dict[str, str] = {}
        total = 0
        for reference in call.files:
            file_id, param = reference.file_id, reference.param
            if file_id not in objects:
                objects[file_id] = await self._finder.find(account, file_id, param=param)
                params[file_id] = param
            record = read_file(objects[file_id])
            if record is None or record.purpose != "user_data":
                raise NotFound(
                    f"There is no file {file_id} for prompts.", code="file_not_found", param=param
                )
            # a file that is named twice is inlined twice
            total += record.bytes
        if total > MOST_BYTES:
            raise TooLarge(f"The files of a prompt may have at most {MOST_BYTES} bytes together.")
        return FoundFiles(objects, params, total * 4 // 3)

    async def inline(self, call: LlmCall, found: FoundFiles) -> LlmCall:
        """Return the call with the content of its files.

        Raises:
            NotFound: a file has been deleted.
            Unavailable: files cannot be read now.
        """
        contents = {
            file_id: await self._read(obj, file_id, found.params[file_id])
            for file_id, obj in found.objects.items()
        }
        return await asyncio.to_thread(inline_files, call, contents)

    async def _read(self, obj: Object, file_id: str, param: str) -> FileContent:
        record = read_file(obj)
        assert record is not None, "it was found"
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
