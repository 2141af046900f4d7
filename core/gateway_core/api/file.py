"""GatewayFile: an immutable file of an account; its bytes are in the object store.

The API creates it once the bytes are stored, and deletes it; the operator removes the bytes, then
the finalizer, and reports in `Ready` whether all bytes exist (contract §3, §2.5).
"""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import ConfigDict, Field

from gateway_core.api.resource import (
    AGE,
    ATOMIC_LIST,
    MESSAGE_COLUMN,
    READY_COLUMNS,
    REQUEST_RULE,
    Bytes,
    Fingerprint,
    LongName,
    Name,
    ObjectRef,
    Part,
    Resource,
    Status,
    Time,
    checked,
    rule,
)

MOST_SEGMENTS = 1000

Filename = Annotated[str, Field(min_length=1, max_length=255)]
Segments = Annotated[
    list[ObjectRef], Field(min_length=1, max_length=MOST_SEGMENTS, json_schema_extra=ATOMIC_LIST)
]

FILE_NAME_RULE = rule(
    "self.metadata.name.matches('^file-[a-z2-7]{26}$')",
    "metadata.name must be `file-` and 26 characters of base32, as the gateway mints them",
)


class FileRequest(Part):
    """What the file is; it never changes."""

    model_config = ConfigDict(
        json_schema_extra=checked(
            REQUEST_RULE,
            rule(
                "self.segments.map(s, s.bytes).sum() == self.bytes",
                "`bytes` must be the sum of the segments' bytes",
            ),
            rule(
                "!has(self.expiresAfterSeconds) || has(self.expirationTime)",
                "`expirationTime` must be specified where `expiresAfterSeconds` is",
            ),
        )
    )

    account_name: Annotated[Name, Field(description="Name of the GatewayAccount that owns it.")]
    key_name: Annotated[
        LongName | None,
        Field(description="Name of the GatewayKey that created it; absent with kubectl."),
    ] = None
    purpose: Annotated[
        Literal["user_data", "batch", "batch_output", "temporary"],
        Field(
            description="user_data, batch and batch_output files are in the Files API; temporary"
            " ones have a URL and are in no list."
        ),
    ]
    filename: Annotated[Filename, Field(description="Name of the file as the client gave it.")]
    media_type: Annotated[
        str | None, Field(max_length=255, description="Media type; only of temporary files.")
    ] = None
    bytes: Annotated[Bytes, Field(description="Number of bytes, the sum of its segments.")]
    segments: Annotated[
        Segments, Field(description="Places of the bytes in the object store, in order.")
    ]
    expiration_time: Annotated[
        Time | None, Field(description="When the file is removed. Absent: never.")
    ] = None
    expires_after_seconds: Annotated[
        int | None,
        Field(
            ge=3600,
            le=2_592_000,
            description="Lifetime in seconds from creation, if the client chose it; the API then"
            " shows the expiration.",
        ),
    ] = None
    upload_name: Annotated[
        LongName | None,
        Field(description="Name of the GatewayUpload whose parts are its segments."),
    ] = None
    batch_name: Annotated[
        LongName | None, Field(description="Name of the GatewayBatch that wrote it.")
    ] = None
    fingerprint: Fingerprint = None


class FileSpec(Part):
    """A file is as it was made, or not at all."""

    request: Annotated[FileRequest, Field(description="What the file is; cannot be changed.")]


class GatewayFile(Resource):
    """A file of an account."""

    kind_name: ClassVar[str] = "GatewayFile"
    plural: ClassVar[str] = "gatewayfiles"
    short_name: ClassVar[str] = "gwfile"
    columns: ClassVar[list[Any]] = [
        ("Account", "string", ".spec.request.accountName", 0),
        ("Purpose", "string", ".spec.request.purpose", 0),
        ("Filename", "string", ".spec.request.filename", 0),
        ("Bytes", "integer", ".spec.request.bytes", 0),
        *READY_COLUMNS,
        ("Expires", "string", ".spec.request.expirationTime", 1),
        ("Key", "string", ".spec.request.keyName", 1),
        ("Upload", "string", ".spec.request.uploadName", 1),
        ("Batch", "string", ".spec.request.batchName", 1),
        MESSAGE_COLUMN,
        AGE,
    ]
    selectable: ClassVar[list[str]] = [
        ".spec.request.accountName",
        ".spec.request.purpose",
        ".spec.request.uploadName",
        ".spec.request.batchName",
    ]
    rules: ClassVar[list[dict[str, Any]]] = [FILE_NAME_RULE]

    spec: FileSpec
    status: Status = Field(default_factory=Status)
