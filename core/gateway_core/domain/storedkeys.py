"""Which bytes in the object store are whose: what a key says of its owner, what a File may name.

Pure. Used by the operator, which removes bytes with the object that they are of and those that are
nobody's, and never others'.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from gateway_core.contract.stored import (
    BATCHES_FOLDER,
    FILES_FOLDER,
    TEMPORARY_FOLDER,
    UPLOADS_FOLDER,
    file_key,
    temporary_key,
    upload_folder,
)

FOLDERS = (BATCHES_FOLDER, FILES_FOLDER, TEMPORARY_FOLDER, UPLOADS_FOLDER)
"""Where bytes lie that a file, an upload or a batch is answerable for."""

Object = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Owner:
    """Whose a key is: the folder it is in, the account, and the object's name."""

    folder: str
    account: str
    name: str


def read_owner(key: str) -> Owner | None:
    """Whose `key` is; None of one that the gateway does not write."""
    for folder in FOLDERS:
        if key.startswith(folder):
            account, slash, rest = key.removeprefix(folder).partition("/")
            name = rest.partition("/")[0]
            return Owner(folder, account, name) if slash and account and name else None
    return None


def pool_of(file: Object) -> Literal["files", "temporary"]:
    """The pool of its account's storage that a GatewayFile counts in."""
    return "temporary" if file["spec"]["request"]["purpose"] == "temporary" else "files"


def list_keys(file: Object) -> list[str]:
    """Where the bytes of a GatewayFile lie, in order."""
    return [segment["key"] for segment in file["spec"]["request"]["segments"]]


def find_foreign(file: Object) -> list[str]:
    """Keys that a GatewayFile names and that lie in no place of its own.

    The gateway writes none such; who makes the object by hand may name any.
    """
    request, name = file["spec"]["request"], file["metadata"]["name"]
    account, upload = request["accountName"], request.get("uploadName")
    whole = {file_key(account, name), temporary_key(account, name)}
    folders = [f"{key}/" for key in whole]
    if upload:
        folders.append(upload_folder(account, upload))
    return [
        key for key in list_keys(file) if key not in whole and not key.startswith(tuple(folders))
    ]
