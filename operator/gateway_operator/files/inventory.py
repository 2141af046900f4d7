"""The inventory of all files and uploads in the record, as little of each as comparisons need.

Memory grows by less than 300 bytes with each object.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from gateway_core.api.file import GatewayFile
from gateway_core.api.resource import Object
from gateway_core.api.times import parse_time
from gateway_core.api.upload import GatewayUpload
from gateway_core.files.files import find_expiry
from gateway_core.files.quota_counters import Pool
from gateway_core.files.uploads import is_settled, read_expiry, read_member
from gateway_core.kube.client import KubernetesClient
from gateway_core.kube.lists import list_pages
from gateway_core.storage.content import pool_of


@dataclass(frozen=True, slots=True)
class FileFacts:
    """A file: its owner, its size, and a digest of where its bytes are and how many each has.

    Times are Unix seconds; `leaving` is since when it is being deleted. `is_good` is what `Ready`
    says.
    """

    account: str
    purpose: str
    pool: Pool
    bytes: int
    digest: int
    created: float
    expiry: int | None
    leaving: float | None
    is_good: bool

    def is_there(self, now: float) -> bool:
        """Whether clients can see it, and its bytes count."""
        return self.leaving is None and (self.expiry is None or now < self.expiry)


@dataclass(frozen=True, slots=True)
class UploadFacts:
    """An Upload that is not settled: its member of the ledger, and the file it will become."""

    account: str
    bytes: int
    created: float
    expiry: int
    member: str | None
    file: str | None


@dataclass(slots=True)
class Inventory:
    """All files, the file of each completed Upload, and the uploads with work left, by name."""

    files: dict[str, FileFacts] = field(default_factory=dict)
    by_upload: dict[str, str] = field(default_factory=dict)
    uploads: dict[str, UploadFacts] = field(default_factory=dict)


def digest_places(places: dict[str, int]) -> int:
    """A digest of keys and their sizes, in any order; differs between processes."""
    return hash(frozenset(places.items()))


async def take_inventory(kube: KubernetesClient) -> Inventory:
    """Read all pages. Uploads first: one that is completed meanwhile is seen as its file.

    Raises KubernetesUnavailable, and VersionExpired where a page took minutes.
    """
    inventory = Inventory()
    async for obj in list_objects(kube, GatewayUpload.plural):
        if not is_settled(obj):
            inventory.uploads[obj["metadata"]["name"]] = _read_upload(obj)
    async for obj in list_objects(kube, GatewayFile.plural):
        name = obj["metadata"]["name"]
        inventory.files[name] = _read_file(obj)
        upload = obj["spec"]["request"].get("uploadName")
        if upload:
            inventory.by_upload[upload] = name
    return inventory


async def list_objects(
    kube: KubernetesClient, plural: str, **selectors: Any
) -> AsyncIterator[Object]:
    """All objects of a kind; memory is that of a page."""
    async for page in list_pages(kube, plural, **selectors):
        for obj in page.items:
            yield obj


def _read_file(obj: Object) -> FileFacts:
    meta, request = obj["metadata"], obj["spec"]["request"]
    conditions = (obj.get("status") or {}).get("conditions") or ()
    leaving = meta.get("deletionTimestamp")
    return FileFacts(
        account=request["accountName"],
        purpose=request["purpose"],
        pool=pool_of(obj),
        bytes=request["bytes"],
        digest=digest_places({part["key"]: part["bytes"] for part in request["segments"]}),
        created=parse_time(meta["creationTimestamp"]).timestamp(),
        expiry=find_expiry(obj),
        leaving=parse_time(leaving).timestamp() if leaving else None,
        is_good=any(c["type"] == "Ready" and c["status"] == "True" for c in conditions),
    )


def _read_upload(obj: Object) -> UploadFacts:
    request = obj["spec"]["request"]
    member = read_member(obj)
    return UploadFacts(
        account=request["accountName"],
        bytes=request["bytes"],
        created=parse_time(obj["metadata"]["creationTimestamp"]).timestamp(),
        expiry=read_expiry(obj),
        member=member[0] if member else None,
        file=(obj["spec"].get("completion") or {}).get("fileName"),
    )
