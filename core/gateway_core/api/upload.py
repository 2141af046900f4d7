"""GatewayUpload: a file that arrives in parts (contract §4).

One compare-and-set on `spec` decides its outcome: by the API for a client, or by either process
once its hour is over. `spec.completion` is the manifest: the parts in order and their File. Parts
are only in the object store.
"""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import ConfigDict, Field

from gateway_core.api.file import MOST_SEGMENTS, Filename
from gateway_core.api.resource import (
    AGE,
    ATOMIC_LIST,
    REQUEST_RULE,
    Bytes,
    Fingerprint,
    LongName,
    Name,
    Part,
    Resource,
    Sha256,
    Status,
    Time,
    Xxh3,
    checked,
    condition_column,
    rule,
)

LIFETIME_SECONDS = 3600
"""Time after its creation to complete an Upload (§4)."""
MOST_PARTS = MOST_SEGMENTS

UPLOAD_NAME_RULE = rule(
    "self.metadata.name.matches('^upload-[a-z2-7]{26}$')",
    "metadata.name must be `upload-` and 26 characters of base32, as the gateway mints them",
)


class UploadRequest(Part):
    """What was asked for; it never changes."""

    account_name: Annotated[Name, Field(description="Name of the GatewayAccount that owns it.")]
    key_name: Annotated[
        LongName | None,
        Field(description="Name of the GatewayKey that created it; absent with kubectl."),
    ] = None
    purpose: Annotated[Literal["user_data", "batch"], Field(description="Purpose of the File.")]
    filename: Annotated[Filename, Field(description="Name of the File as the client gave it.")]
    media_type: Annotated[
        str, Field(min_length=1, max_length=255, description="Media type that the client declared.")
    ]
    bytes: Annotated[
        int,
        Field(
            ge=1,
            le=209_715_200,
            description="Bytes of the whole file; its parts must add up to it.",
        ),
    ]
    expires_after_seconds: Annotated[
        int | None,
        Field(
            ge=3600,
            le=2_592_000,
            description="Lifetime of the File in seconds from its creation. Absent: unlimited for"
            " user_data, 30 days for batch.",
        ),
    ] = None
    fingerprint: Fingerprint = None


class PartRef(Part):
    """One part of the File; its place in the store follows from its id."""

    id: Annotated[
        str,
        Field(
            max_length=63,
            pattern="^part_[a-z2-7]{26}$",
            description="Id of the part, which also names its place in the object store.",
        ),
    ]
    bytes: Annotated[Bytes, Field(description="Number of bytes.")]
    sha256: Annotated[Sha256, Field(description="SHA-256 of the bytes, in hex.")]
    xxh3: Xxh3 | None = None


class Completion(Part):
    """The manifest: the parts in order, and the File that they make."""

    file_name: Annotated[
        Name,
        Field(
            description="Name of the GatewayFile that the parts make, chosen with the completion."
        ),
    ]
    parts: Annotated[
        list[PartRef],
        Field(
            min_length=1,
            max_length=MOST_PARTS,
            json_schema_extra=ATOMIC_LIST,
            description="The parts in order of composition.",
        ),
    ]
    time: Annotated[Time, Field(description="When the Upload was completed.")]


class UploadSpec(Part):
    """What was asked for, and how it ended."""

    model_config = ConfigDict(
        json_schema_extra=checked(
            rule(
                "(self.outcome == 'Completed') == has(self.completion)",
                "`completion` must be specified where `outcome` is Completed, and only there",
            ),
            rule(
                "!has(self.completion)"
                " || self.completion.parts.map(p, p.bytes).sum() == self.request.bytes",
                "the parts' bytes must add up to the request's",
            ),
        )
    )

    request: Annotated[
        UploadRequest,
        Field(
            json_schema_extra=checked(REQUEST_RULE),
            description="What was asked for; cannot be changed.",
        ),
    ]
    outcome: Annotated[
        Literal["Pending", "Completed", "Cancelled", "Expired"],
        Field(
            description="How the Upload ended; Pending (default) until then, decided once.",
            json_schema_extra=checked(
                rule(
                    "self == oldSelf || oldSelf == 'Pending'",
                    "may not be changed once it is decided",
                )
            ),
        ),
    ] = "Pending"
    completion: Annotated[
        Completion | None,
        Field(
            json_schema_extra=checked(rule("self == oldSelf", "`completion` may not be changed")),
            description="The parts and their File; specified exactly if outcome is Completed.",
        ),
    ] = None


class UploadStatus(Status):
    """What has followed from the outcome."""

    phase: Annotated[
        str | None,
        Field(
            max_length=32,
            description="Pending, Completed, Cancelled or Expired: the outcome as the operator has"
            " seen it.",
        ),
    ] = None
    work: Annotated[
        str | None,
        Field(
            max_length=16,
            description="Absent while something is to be done; Settled once the File is there, or"
            " the parts are gone, and the reservation is ended.",
        ),
    ] = None
    completion_time: Annotated[Time | None, Field(description="When the Upload ended.")] = None
    file_uid: Annotated[
        str | None,
        Field(
            max_length=64,
            description="metadata.uid of the File's object. A file of that name with another uid"
            " was made too late, and is removed.",
        ),
    ] = None
    file_creation_time: Annotated[
        Time | None,
        Field(
            description="When the File's object was created: a repeated completion answers with it"
            " after the File is deleted."
        ),
    ] = None


class GatewayUpload(Resource):
    """A file that arrives in parts."""

    kind_name: ClassVar[str] = "GatewayUpload"
    plural: ClassVar[str] = "gatewayuploads"
    short_name: ClassVar[str] = "gwupload"
    columns: ClassVar[list[Any]] = [
        ("Account", "string", ".spec.request.accountName", 0),
        ("Purpose", "string", ".spec.request.purpose", 0),
        ("Filename", "string", ".spec.request.filename", 0),
        ("Bytes", "integer", ".spec.request.bytes", 0),
        ("Outcome", "string", ".spec.outcome", 0),
        condition_column("Reason", "Succeeded", "reason", 0),
        ("File", "string", ".spec.completion.fileName", 0),
        ("Key", "string", ".spec.request.keyName", 1),
        ("Work", "string", ".status.work", 1),
        condition_column("Message", "Succeeded", "message", 1),
        AGE,
    ]
    selectable: ClassVar[list[str]] = [".spec.request.accountName", ".spec.outcome", ".status.work"]
    rules: ClassVar[list[dict[str, Any]]] = [UPLOAD_NAME_RULE]

    spec: UploadSpec
    status: UploadStatus = Field(default_factory=UploadStatus)
