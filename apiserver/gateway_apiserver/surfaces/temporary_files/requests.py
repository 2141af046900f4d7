"""What clients send to make temporary files, field by field (contract §2.5). Pure."""

import base64
import binascii
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urlsplit

from gateway_core.api.errors import InvalidRequest
from gateway_core.files.files import USER_DATA_BYTES, clean_filename
from gateway_core.tasks.operations import MAX_URL

MOST_FILENAME_CHARACTERS = 255
MD5_BYTES = 16


@dataclass(frozen=True, slots=True)
class Source:
    """Where the bytes come from: a URL, or base64, whose text may be the mark of a long one."""

    url: str | None
    data: str | None
    filename: str


@dataclass(frozen=True, slots=True)
class Preparation:
    """What is going to be put; `md5` is hex."""

    filename: str
    bytes: int
    md5: str


def read_source(body: Mapping[str, Any]) -> Source:
    """The source and the file's name. InvalidRequest, in the validation form."""
    errors = _refuse_unknown(body, ("source", "file_name"))
    source, filename = body.get("source"), body.get("file_name")
    if source is None:
        errors["source"] = ["is required"]
    elif not isinstance(source, dict):
        errors["source"] = ["must be an object"]
    else:
        problem = _find_problem(source)
        if problem:
            errors["source"] = [problem]
    if filename is not None:
        _check_filename("file_name", filename, errors)
    _raise(errors)
    assert isinstance(source, dict)
    url, data = source.get("url"), source.get("data")
    if filename is None and url is not None:
        filename = unquote(urlsplit(url).path.rpartition("/")[2])
    return Source(url, data, clean_filename(filename or ""))


def read_preparation(body: Mapping[str, Any]) -> Preparation:
    """What is to be prepared. InvalidRequest, in the validation form."""
    errors = _refuse_unknown(body, ("filename", "byte_size", "checksum"))
    filename, size, checksum = (body.get(name) for name in ("filename", "byte_size", "checksum"))
    if filename is None:
        errors["filename"] = ["is required"]
    else:
        _check_filename("filename", filename, errors)
    if isinstance(size, float) and size.is_integer():
        size = int(size)
    if size is None:
        errors["byte_size"] = ["is required"]
    elif not isinstance(size, int) or isinstance(size, bool):
        errors["byte_size"] = ["must be an integer"]
    elif not 1 <= size <= USER_DATA_BYTES:
        errors["byte_size"] = [f"must be from 1 to {USER_DATA_BYTES}"]
    digest = b""
    with suppress(binascii.Error, ValueError):
        digest = base64.b64decode(checksum if isinstance(checksum, str) else "", validate=True)
    if checksum is None:
        errors["checksum"] = ["is required"]
    elif len(digest) != MD5_BYTES:
        errors["checksum"] = ["must be an MD5 digest of 16 bytes, in base64"]
    _raise(errors)
    assert isinstance(filename, str)
    assert isinstance(size, int)
    return Preparation(clean_filename(filename), size, digest.hex())


def read_signed_id(body: Mapping[str, Any]) -> str:
    """What is to be confirmed. InvalidRequest, in the validation form."""
    errors = _refuse_unknown(body, ("signed_id",))
    signed_id = body.get("signed_id")
    if signed_id is None:
        errors["signed_id"] = ["is required"]
    elif not isinstance(signed_id, str) or not signed_id:
        errors["signed_id"] = ["must be a text"]
    _raise(errors)
    assert isinstance(signed_id, str)
    return signed_id


def refuse_source(problem: str) -> InvalidRequest:
    """What is wrong with the source's bytes."""
    errors = {"source": [problem]}
    return InvalidRequest("The request is invalid: source.", errors=errors, param="source")


def _find_problem(source: Mapping[str, Any]) -> str | None:
    kind = source.get("type")
    if kind not in ("url", "base64"):
        return "must have the type url or base64"
    field = "url" if kind == "url" else "data"
    value = source.get(field)
    known = {"type", field}
    unknown = sorted(name for name, value in source.items() if name not in known)
    if unknown:
        return f"has the unknown field {unknown[0]}"
    if not isinstance(value, str) or not value:
        return f"must have a {field}, which is a text"
    if kind == "base64":
        return None
    if len(value) > MAX_URL:
        return f"must have a url of at most {MAX_URL} characters"
    try:
        parts = urlsplit(value)
        good = parts.scheme.lower() in ("http", "https") and bool(parts.hostname)
    except ValueError:
        good = False
    return None if good else "must have an absolute http or https URL"


def _check_filename(field: str, value: Any, errors: dict[str, list[str]]) -> None:
    if not isinstance(value, str):
        errors[field] = ["must be a text"]
    elif not 1 <= len(value) <= MOST_FILENAME_CHARACTERS:
        errors[field] = [f"must have 1 to {MOST_FILENAME_CHARACTERS} characters"]


def _refuse_unknown(body: Mapping[str, Any], known: tuple[str, ...]) -> dict[str, list[str]]:
    return {name: ["is not a known field"] for name in body if name not in known}


def _raise(errors: dict[str, list[str]]) -> None:
    if errors:
        raise InvalidRequest(f"The request is invalid: {', '.join(errors)}.", errors=errors)
