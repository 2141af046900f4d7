"""Base of all resource kinds, field types, and keys of bytes in the object store."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr
from pydantic.alias_generators import to_camel

from gateway_core.api.ids import API_VERSION
from gateway_core.api.money import MAX_MICROS

RELEASE = "0.1.0"

Object = dict[str, Any]
"""An object in the JSON of the Kubernetes API."""

Name = Annotated[
    str, Field(min_length=1, max_length=63, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")
]
LongName = Annotated[str, Field(min_length=1, max_length=253)]
Text = Annotated[str, Field(max_length=1024)]
Micros = Annotated[int, Field(ge=0, le=MAX_MICROS)]
Time = Annotated[
    str,
    Field(
        max_length=64,
        # the API server's date-time accepts what no parser does, e.g. an offset of 99 hours
        pattern=r"^[1-9]\d{3}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}(\.\d{1,9})?"
        r"(Z|[+-]([01]\d|2[0-3]):[0-5]\d)$",
        json_schema_extra={"format": "date-time"},
    ),
]
Sha256 = Annotated[str, Field(max_length=64, pattern=r"^[0-9a-f]{64}$")]
Xxh3 = Annotated[
    str,
    Field(
        max_length=32,
        pattern=r"^[0-9a-f]{32}$",
        description="XXH3 of 128 bits, by which the bytes are checked when they are read.",
    ),
]


def rule(expression: str, message: str) -> dict[str, Any]:
    """Return a CEL rule of a schema."""
    return {"rule": expression, "message": message}


def checked(*rules: dict[str, Any]) -> dict[str, Any]:
    """Return the part of a schema that has the API server check these CEL rules."""
    return {"x-kubernetes-validations": list(rules)}


IMMUTABLE = checked(rule("self == oldSelf", "may not be changed after creation"))
REQUEST_RULE = rule("self == oldSelf", "`request` may not be changed after creation")
"""Of `spec.request`: what was asked for never changes, so its digest and price stay true."""
ATOMIC_LIST: dict[str, Any] = {"x-kubernetes-list-type": "atomic"}
SET_LIST: dict[str, Any] = {"x-kubernetes-list-type": "set"}

DesiredState = Annotated[
    Literal["Completed", "Cancelled"],
    Field(
        description="Set to Cancelled to end it early; there is no way back.",
        json_schema_extra=checked(
            rule(
                "self == oldSelf || oldSelf == 'Completed'",
                "may not be changed back once 'Cancelled'",
            )
        ),
    ),
]
Fingerprint = Annotated[
    Sha256 | None, Field(description="Digest of the validated body, to tell a replay.")
]
Dollars = Annotated[str | None, Field(max_length=32, description="The same in dollars.")]

REFERRED_NAME_RULE = rule(
    "self.metadata.name.matches('^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$')",
    "metadata.name must be 1 to 63 lowercase letters, digits or dashes: others refer to it",
)


def map_list(*keys: str, max_items: int) -> Any:
    """List type whose items have `keys`, merged item by item by server-side apply."""
    extra: dict[str, Any] = {
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": list(keys),
    }
    return Field(max_length=max_items, json_schema_extra=extra)


class Part(BaseModel):
    """A piece of a resource: camelCase outside, snake_case inside.

    Unknown fields are ignored, so that a process reads what a newer release wrote.
    """

    # an invalid object's values, such as a task's prompt, are in no log
    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, extra="ignore", hide_input_in_errors=True
    )


class Condition(Part):
    """One observation of the resource, in the shape of metav1.Condition."""

    type: Annotated[
        str,
        Field(max_length=316, description="Type of the condition, e.g. Ready; unique in the list."),
    ]
    status: Annotated[
        Literal["True", "False", "Unknown"],
        Field(description="True, False, or Unknown while it is not decided."),
    ]
    observed_generation: Annotated[
        int | None,
        Field(
            ge=0,
            description="`metadata.generation` of the object that the condition was computed from;"
            " older than the object's: the condition may be out of date.",
        ),
    ] = None
    last_transition_time: Annotated[
        Time, Field(description="When `status` last changed (RFC 3339, UTC).")
    ]
    reason: Annotated[
        str,
        Field(
            min_length=1,
            max_length=1024,
            description="Reason of the status as one word in CamelCase, for programs; the list is"
            " closed.",
        ),
    ]
    message: Annotated[
        str,
        Field(
            max_length=4096,
            description="Reason of the status as a sentence, for people; its words may change.",
        ),
    ]


class Status(Part):
    """Fields that every status has."""

    observed_generation: Annotated[
        int | None,
        Field(
            ge=0,
            description="`metadata.generation` of the object that this status was computed from.",
        ),
    ] = None
    conditions: Annotated[
        list[Condition] | None,
        Field(description="Observations of the object, one for each type."),
        map_list("type", max_items=8),
    ] = None


HealthState = Literal["Healthy", "Degraded", "Failing"]


class Health(Part):
    """Calls of the last three minutes, of all processes together; absent without any call.

    Figures are rounded, and change only where they differ clearly.
    """

    state: Annotated[
        HealthState,
        Field(
            description="Degraded: 5 % of the calls fail, or a process has opened its circuit."
            " Failing: 50 % fail, or all processes have."
        ),
    ]
    calls_per_minute: Annotated[
        int, Field(ge=0, description="Calls in a minute, on average over the last three minutes.")
    ]
    error_percent: Annotated[
        int,
        Field(
            ge=0,
            le=100,
            description="Failed calls in percent of all. Input that the provider rejects is no"
            " failure.",
        ),
    ]
    latency_millis: Annotated[
        int | None,
        Field(
            ge=0,
            description="Mean time in milliseconds of a call that was answered, until its end.",
        ),
    ] = None
    first_token_millis: Annotated[
        int | None,
        Field(
            ge=0, description="Mean time in milliseconds until the first output of a streamed call."
        ),
    ] = None


class Metadata(Part):
    """The part of an object's metadata that the gateway reads."""

    name: str = ""
    namespace: str | None = None
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    labels: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)
    finalizers: list[str] = Field(default_factory=list)


class Resource(Part):
    """A kind. Subclasses add `spec` and `status` and set the class variables."""

    kind_name: ClassVar[str]
    plural: ClassVar[str]
    short_name: ClassVar[str]
    columns: ClassVar[list[tuple[str, str, str, int]]] = []
    selectable: ClassVar[list[str]] = []
    rules: ClassVar[list[dict[str, Any]]] = []

    metadata: Metadata = Field(default_factory=Metadata)

    _excess: str | None = PrivateAttr(default=None)
    _source: dict[str, Any] | None = PrivateAttr(default=None)

    @property
    def excess(self) -> str | None:
        """Why the object exceeds its bounds, None if it does not; too large fields are dropped."""
        return self._excess

    @classmethod
    def read(cls, obj: Mapping[str, Any], excess: str | None = None) -> Self:
        """Return the resource of an object, with its `excess`."""
        resource = cls.model_validate(obj)
        resource._excess = excess
        return resource

    @classmethod
    def load(cls, obj: dict[str, Any]) -> Self:
        """Return the resource of an object, kept as its `source`."""
        resource = cls.model_validate(obj)
        resource._source = obj
        return resource

    @property
    def source(self) -> dict[str, Any]:
        """The loaded object with all its fields, for writes and the archive."""
        if self._source is None:
            raise ValueError(f"{self.metadata.name} was not loaded from an object")
        return self._source


def skeleton(kind: type[Resource], name: str, **metadata: Any) -> dict[str, Any]:
    """Return a new object of `kind` without its `spec`."""
    return {
        "apiVersion": API_VERSION,
        "kind": kind.kind_name,
        "metadata": {"name": name, **metadata},
    }


def condition_column(name: str, kind: str, field: str, priority: int = 0) -> Any:
    """Return a printer column that shows a field of one condition."""
    path = f'.status.conditions[?(@.type=="{kind}")].{field}'
    return (name, "string", path, priority)


AGE = ("Age", "date", ".metadata.creationTimestamp", 0)
READY_COLUMNS: list[Any] = [
    condition_column("Ready", "Ready", "status"),
    condition_column("Reason", "Ready", "reason"),
]
HEALTH_COLUMNS: list[Any] = [
    ("Health", "string", ".status.health.state", 0),
    ("Errors(%)", "integer", ".status.health.errorPercent", 0),
    ("Latency(ms)", "integer", ".status.health.latencyMillis", 0),
    ("First-token(ms)", "integer", ".status.health.firstTokenMillis", 1),
    ("Calls/min", "integer", ".status.health.callsPerMinute", 1),
]
MESSAGE_COLUMN: Any = condition_column("Message", "Ready", "message", 1)


FILES_FOLDER = "files/"
UPLOADS_FOLDER = "uploads/"
BATCHES_FOLDER = "batches/"
TEMPORARY_FOLDER = "temporary/"
"""Prefixes of keys, before the names of the account and of the owning object."""

_PUT = "/put"

Bytes = Annotated[int, Field(ge=0, le=2**53 - 1)]


class ObjectRef(Part):
    """Bytes in the object store, written before whatever refers to them."""

    key: Annotated[
        str,
        Field(min_length=1, max_length=1024, description="Key of the bytes in the object store."),
    ]
    bytes: Annotated[Bytes, Field(description="Number of bytes.")]
    sha256: Annotated[Sha256, Field(description="SHA-256 of the bytes, in hex.")]
    xxh3: Xxh3 | None = None


def file_key(account: str, file_name: str) -> str:
    """Key of a File created by one request."""
    return f"{FILES_FOLDER}{account}/{file_name}"


def upload_folder(account: str, upload_name: str) -> str:
    """Prefix of the keys of an Upload's parts, which become those of its File."""
    return f"{UPLOADS_FOLDER}{account}/{upload_name}/"


def part_key(account: str, upload_name: str, part_id: str) -> str:
    """Key of one part, also once it is a segment of a File."""
    return upload_folder(account, upload_name) + part_id


def receipt_key(account: str, upload_name: str, part_id: str) -> str:
    """Key of the receipt of a part, which exists once the part has arrived completely.

    JSON `{"bytes": int, "sha256": hex, "xxh3": hex}`, removed with parts that belong to no File.
    """
    return part_key(account, upload_name, part_id) + ".json"


def batch_folder(account: str, batch_name: str) -> str:
    """Prefix of a Batch's results until they are merged into its Files."""
    return f"{BATCHES_FOLDER}{account}/{batch_name}/"


def temporary_key(account: str, file_name: str) -> str:
    """Key of a temporary file."""
    return f"{TEMPORARY_FOLDER}{account}/{file_name}"


def put_key(account: str, file_name: str) -> str:
    """Key of a temporary file that its client uploads itself."""
    return temporary_key(account, file_name) + _PUT


def is_put(key: str) -> bool:
    """Return whether it is a key of `put_key`."""
    return key.startswith(TEMPORARY_FOLDER) and key.endswith(_PUT)


FOLDER = "media/"
"""Prefix of the keys of outputs."""
