"""Creation of a File: its form is checked while its bytes are stored (contract §3.1 to §3.3)."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass

from gateway_apiserver.endpoints import Call
from gateway_apiserver.surfaces.files.writing import FileTooLarge, FileWriter
from gateway_apiserver.surfaces.forms import MOST_ENVELOPE_BYTES, Form
from gateway_apiserver.surfaces.validation import check_word, invalid, missing
from gateway_core.api.ids import FILE_PREFIX, IdMint, id_to_name
from gateway_core.api.resource import Object, file_key
from gateway_core.files.files import (
    DIRECT_BATCH_BYTES,
    DIRECT_LIMITS,
    LONGEST_SECONDS,
    PURPOSES,
    SHORTEST_SECONDS,
    NewFile,
    Purpose,
    clean_filename,
    find_life,
)

FIELD = "file"
_ANCHOR_FIELD = "expires_after[anchor]"
_SECONDS_FIELD = "expires_after[seconds]"
_FIELDS = ("purpose", _ANCHOR_FIELD, _SECONDS_FIELD)
_SLACK_BYTES = 64 * 1024
"""Allowance for the form around the file, if only the length of the body is known."""


@dataclass(frozen=True, slots=True)
class FileOptions:
    """The fields of a form; `life` is seconds, None for ever."""

    purpose: Purpose
    life: int | None


class FileCreation:
    """Creates Files."""

    def __init__(self, writer: FileWriter, mint: IdMint) -> None:
        self._writer = writer
        self._mint = mint

    async def create(self, call: Call) -> Object:
        """Return the GatewayFile that the call's form has made.

        Raises the errors of contract §3.2. Nothing is left after a failure, unless its outcome is
        unknown (OutcomeUnknown).
        """
        account = call.caller.account
        form = Form(call.headers, call.receive, FIELD, known=_FIELDS)
        declared = call.declared_length
        if declared > DIRECT_BATCH_BYTES + MOST_ENVELOPE_BYTES:
            raise FileTooLarge(DIRECT_BATCH_BYTES, param=FIELD)
        # what cannot fit is not read
        at_least = max(0, declared - _SLACK_BYTES)
        await self._writer.quota.check_room(account.name, "files", at_least, account.storage_bytes)
        if not await form.find_file():
            raise missing(FIELD)
        now = int(self._writer.clock() * 1000)
        name = id_to_name(self._mint.mint_ordered(FILE_PREFIX, account.name, now))
        key = file_key(account.name, name)
        stored = await self._writer.store(account, key, _check_bytes(form), DIRECT_BATCH_BYTES)
        options = read_options(form.fields)
        new = NewFile(
            name=name,
            account=account.name,
            purpose=options.purpose,
            filename=clean_filename(form.filename or ""),
            segments=(stored.refer(),),
            life=options.life,
            key_name=call.caller.key.name,
            request_id=call.context.request_id,
        )
        return (await self._writer.record(new, account.storage_bytes)).object


def read_options(fields: Mapping[str, str]) -> FileOptions:
    """Return the form's fields, validated. InvalidRequest."""
    purpose = read_purpose(fields)
    if purpose is None:
        raise missing("purpose")
    return FileOptions(purpose, find_life(purpose, _read_life(fields)))


def read_purpose(fields: Mapping[str, str]) -> Purpose | None:
    """Return the purpose, None if it was not received yet. InvalidRequest."""
    text = fields.get("purpose")
    if text is None:
        return None
    check_word(text, "purpose", PURPOSES)
    return "batch" if text == "batch" else "user_data"


async def _check_bytes(form: Form) -> AsyncGenerator[bytes, None]:
    """Yield the file's bytes; raises before their end unless the whole form is valid."""
    size = 0
    _check_fields_so_far(form, size)
    async with aclosing(form.stream()) as chunks:
        async for chunk in chunks:
            size += len(chunk)
            _check_fields_so_far(form, size)
            yield chunk
    _check_fields_so_far(form, size)
    if size == 0:
        raise invalid(FIELD, "must not be empty", code="empty_file")
    read_options(form.fields)


def _check_fields_so_far(form: Form, size: int) -> None:
    purpose = read_purpose(form.fields)
    most = DIRECT_BATCH_BYTES if purpose is None else DIRECT_LIMITS[purpose]
    if size > most:
        raise FileTooLarge(most, param=FIELD)


def _read_life(fields: Mapping[str, str]) -> int | None:
    """Return the requested seconds, by both fields or neither. InvalidRequest."""
    anchor, seconds = fields.get(_ANCHOR_FIELD), fields.get(_SECONDS_FIELD)
    if anchor is None and seconds is None:
        return None
    if anchor is None:
        raise missing(_ANCHOR_FIELD)
    if seconds is None:
        raise missing(_SECONDS_FIELD)
    check_word(anchor, _ANCHOR_FIELD, ("created_at",))
    is_number = seconds.isascii() and seconds.isdigit() and len(seconds) <= 9
    if not is_number or not SHORTEST_SECONDS <= int(seconds) <= LONGEST_SECONDS:
        raise invalid(
            _SECONDS_FIELD, f"must be an integer from {SHORTEST_SECONDS} to {LONGEST_SECONDS}"
        )
    return int(seconds)
