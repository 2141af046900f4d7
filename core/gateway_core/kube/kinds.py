"""Kinds of objects that accounts hold, as repositories list and change them."""

from dataclasses import dataclass, replace

from gateway_core.api.batch import TERMINAL_PHASES, GatewayBatch
from gateway_core.api.file import GatewayFile
from gateway_core.api.guardrail import GUARDRAIL_PREFIX, GatewayGuardrail
from gateway_core.api.ids import BATCH_PREFIX, FILE_PREFIX, TASK_PREFIX, UPLOAD_PREFIX
from gateway_core.api.key import KEY_PREFIX, GatewayKey, KeyClass
from gateway_core.api.task import GatewayTask
from gateway_core.api.upload import GatewayUpload


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind that accounts hold. `selector` leaves out what is not governed here.

    `owner` is where the account's name stands. `listed` are the fields of the spec that lists keep,
    all of them where it is None: an account may have thousands of objects of 16 KiB. With
    `ends_at_once` an object is gone as soon as its deletion has begun. `key_class` is of keys.
    """

    plural: str
    prefix: str
    title: str
    selector: str = ""
    owner: tuple[str, ...] = ("spec", "accountName")
    plural_title: str = ""
    listed: frozenset[str] | None = None
    ends_at_once: bool = False
    key_class: KeyClass | None = None


KEYS = Kind(
    GatewayKey.plural,
    KEY_PREFIX,
    "Key",
    ",spec.class=Standard",
    listed=frozenset(
        {"accountName", "displayName", "createdBy", "revoked", "disabled", "expirationTime"}
    ),
    ends_at_once=True,
    key_class="Standard",
)
MANAGEMENT_KEYS = replace(
    KEYS, title="Management key", selector=",spec.class=Management", key_class="Management"
)
GUARDRAILS = Kind(
    GatewayGuardrail.plural,
    GUARDRAIL_PREFIX,
    "Guardrail",
    listed=frozenset({"accountName", "displayName", "keyNames"}),
    ends_at_once=True,
)
BATCHES = Kind(
    GatewayBatch.plural,
    BATCH_PREFIX,
    "Batch",
    owner=("spec", "request", "accountName"),
    plural_title="Batches",
)
TASKS = Kind(GatewayTask.plural, TASK_PREFIX, "Task", owner=("spec", "request", "accountName"))
FILES = Kind(GatewayFile.plural, FILE_PREFIX, "File", owner=("spec", "request", "accountName"))
UPLOADS = Kind(
    GatewayUpload.plural, UPLOAD_PREFIX, "Upload", owner=("spec", "request", "accountName")
)
OPEN_BATCHES = replace(
    BATCHES, selector="".join(f",status.phase!={phase}" for phase in TERMINAL_PHASES)
)
