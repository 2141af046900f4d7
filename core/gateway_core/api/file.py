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

    account_name: Annotated[Name, Field(description="The account that owns it.")]
    key_name: Annotated[LongName | None, Field(description="The key it came with.")] = None
    purpose: Annotated[
        Literal["user_data", "batch", "batch_output", "temporary"],
        Field(description="`temporary` files have an address and are in no list."),
    ]
    filename: Filename
    media_type: Annotated[
        str | None, Field(max_length=255, description="Told of temporary files alone.")
    ] = None
    bytes: Bytes
    segments: Annotated[Segments, Field(description="Where the bytes lie, in order.")]
    expiration_time: Annotated[
        Time | None, Field(description="From when on it is gone; absent for never.")
    ] = None
    expires_after_seconds: Annotated[
        int | None,
        Field(
            ge=3600,
            le=2_592_000,
            description="Its life from the creation on. Where it is given, clients are told it, and"
            " `expirationTime` is the same but for seconds.",
        ),
    ] = None
    upload_name: Annotated[
        LongName | None, Field(description="The Upload whose parts are its segments.")
    ] = None
    batch_name: Annotated[LongName | None, Field(description="The Batch that wrote it.")] = None
    fingerprint: Fingerprint = None


class FileSpec(Part):
    """A file is as it was made, or not at all."""

    request: FileRequest


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
