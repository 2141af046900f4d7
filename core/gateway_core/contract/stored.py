"""References to bytes in the object store, as resources carry them, and where the bytes lie.

Bytes are written before the object that names them and deleted after it.
"""

from typing import Annotated

from pydantic import Field

from gateway_core.contract.resource import Part, Sha256, Xxh3

FILES_FOLDER = "files/"
UPLOADS_FOLDER = "uploads/"
BATCHES_FOLDER = "batches/"
TEMPORARY_FOLDER = "temporary/"
"""What the keys begin with; after it the account's name and the owning object's name."""

_PUT = "/put"

Bytes = Annotated[int, Field(ge=0, le=2**53 - 1)]


class ObjectRef(Part):
    """Bytes in the object store, written before whatever refers to them."""

    key: Annotated[str, Field(min_length=1, max_length=1024)]
    bytes: Bytes
    sha256: Sha256
    xxh3: Xxh3 | None = None


def file_key(account: str, file_name: str) -> str:
    """Where the bytes of a File lie that was made in one piece."""
    return f"{FILES_FOLDER}{account}/{file_name}"


def upload_folder(account: str, upload_name: str) -> str:
    """What the keys of all parts of an Upload begin with, those of its File too."""
    return f"{UPLOADS_FOLDER}{account}/{upload_name}/"


def part_key(account: str, upload_name: str, part_id: str) -> str:
    """Where one part lies, from its arrival to the end of the File that it is a segment of."""
    return upload_folder(account, upload_name) + part_id


def receipt_key(account: str, upload_name: str, part_id: str) -> str:
    """Where it is written down, after a part's bytes, how many they are and their digests.

    JSON, `{"bytes": int, "sha256": hex, "xxh3": hex}`: a part without it has not arrived. It goes
    with the parts that no File has.
    """
    return part_key(account, upload_name, part_id) + ".json"


def batch_folder(account: str, batch_name: str) -> str:
    """What the keys of a Batch's results begin with, until they are merged into its Files."""
    return f"{BATCHES_FOLDER}{account}/{batch_name}/"


def temporary_key(account: str, file_name: str) -> str:
    """Where the bytes of a temporary file lie."""
    return f"{TEMPORARY_FOLDER}{account}/{file_name}"


def put_key(account: str, file_name: str) -> str:
    """Where those lie that a client has put itself, before the file is confirmed and after it."""
    return temporary_key(account, file_name) + _PUT


def is_put(key: str) -> bool:
    """Whether a client has put the bytes there itself."""
    return key.startswith(TEMPORARY_FOLDER) and key.endswith(_PUT)
