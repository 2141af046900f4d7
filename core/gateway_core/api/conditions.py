"""Condition types, their closed list of reasons, and updates of condition lists."""

from collections.abc import Iterable, Mapping
from datetime import datetime
from enum import StrEnum
from typing import Any

from gateway_core.api.task import GatewayTask
from gateway_core.api.times import format_time

WAIT_PREFIX = "WaitingFor"
"""Begins the reasons of runs that wait for something outside of them."""


class ConditionType(StrEnum):
    """Condition types of the gateway's kinds."""

    SUBMITTED = "Submitted"  # runs: True once the provider has named the job
    SUCCEEDED = "Succeeded"  # runs: Unknown while under way, then True or False
    FINISHED = "Finished"  # runs: True once a terminal state is recorded
    CALLBACK_DELIVERED = "CallbackDelivered"  # runs with a callback, from their end on
    READY = "Ready"  # standing kinds


class Reason(StrEnum):
    """Reasons of conditions. A run's failure reason is its wire code in CamelCase."""

    # runs under way
    SUBMITTING = "Submitting"
    WAITING_FOR_PROVIDER = "WaitingForProvider"
    WAITING_FOR_MODEL = "WaitingForModel"
    WAITING_FOR_LEDGER = "WaitingForLedger"
    WAITING_FOR_STORE = "WaitingForStore"
    WAITING_FOR_SLOT = "WaitingForSlot"
    RUNNING = "Running"
    VALIDATING = "Validating"
    FINALIZING = "Finalizing"
    CANCELLING = "Cancelling"
    # runs at their end
    COMPLETED = "Completed"
    GENERATION_FAILED = "GenerationFailed"
    CANCELLED = "Cancelled"
    DEADLINE_EXCEEDED = "DeadlineExceeded"
    SUBMISSION_UNKNOWN = "SubmissionUnknown"
    JOB_LOST = "JobLost"
    OUTPUT_UNAVAILABLE = "OutputUnavailable"
    PROVIDER_UNAVAILABLE = "ProviderUnavailable"
    INVALID_REQUEST = "InvalidRequest"
    MODEL_NOT_ALLOWED = "ModelNotAllowed"
    INSUFFICIENT_BALANCE = "InsufficientBalance"
    CREDIT_LIMIT_EXCEEDED = "CreditLimitExceeded"
    # their callbacks
    DELIVERY_PENDING = "DeliveryPending"
    DELIVERED = "Delivered"
    UNDELIVERED = "Undelivered"
    # configuration kinds
    AVAILABLE = "Available"
    NOT_TESTED = "NotTested"
    CREDENTIALS_REFUSED = "CredentialsRefused"
    CALLS_FAIL = "CallsFail"
    NAME_NOT_FOUND = "NameNotFound"
    SUSPENDED = "Suspended"
    REMOVING = "Removing"
    DISABLED = "Disabled"
    REVOKED = "Revoked"
    EXPIRED = "Expired"
    ACCOUNT_NOT_FOUND = "AccountNotFound"
    USER_NOT_FOUND = "UserNotFound"
    NOT_A_MEMBER = "NotAMember"
    KEY_NOT_FOUND = "KeyNotFound"
    TOO_MANY_GUARDRAILS = "TooManyGuardrails"
    TOO_LARGE = "TooLarge"
    KEY_PENDING = "KeyPending"
    SECRET_NOT_WRITABLE = "SecretNotWritable"  # noqa: S105 - a reason, not a secret
    PROVIDER_NOT_FOUND = "ProviderNotFound"
    PROVIDER_NOT_READY = "ProviderNotReady"
    SECRET_FORBIDDEN = "SecretForbidden"  # noqa: S105 - a reason, not a secret
    SECRET_NOT_FOUND = "SecretNotFound"  # noqa: S105 - a reason, not a secret
    INVALID_EXPRESSION = "InvalidExpression"
    INVALID_TEMPLATE = "InvalidTemplate"
    ADAPTER_NOT_FOUND = "AdapterNotFound"
    ADAPTER_FAILED = "AdapterFailed"
    UNKNOWN_ACTION = "UnknownAction"
    INVALID_FIELD = "InvalidField"
    PRICE_MISSING = "PriceMissing"
    INVALID_PRICE = "InvalidPrice"
    DUPLICATE_MODEL = "DuplicateModel"
    BYTES_MISSING = "BytesMissing"
    NAME_NOT_MINTED = "NameNotMinted"

    @property
    def code(self) -> str:
        """The wire code of a failed run, e.g. `generation_failed` (contract §11.1)."""
        return "".join("_" + c.lower() if c.isupper() else c for c in self.value).lstrip("_")


def update_conditions(
    current: Iterable[Mapping[str, Any]],
    changes: Iterable[tuple[ConditionType, str, Reason, str]],
    *,
    generation: int,
    now: str,
) -> list[dict[str, Any]]:
    """Return the new list after changes of (type, status, reason, message).

    `lastTransitionTime` changes only with the status, by the API conventions; `now` is RFC 3339.
    """
    merged = {c["type"]: dict(c) for c in current}
    for kind, status, reason, message in changes:
        old = merged.get(kind.value)
        same = old is not None and old["status"] == status
        merged[kind.value] = {
            "type": kind.value,
            "status": status,
            "observedGeneration": generation,
            "lastTransitionTime": old["lastTransitionTime"] if same and old else now,
            "reason": reason.value,
            "message": message,
        }
    return list(merged.values())


def change_conditions(
    task: GatewayTask, changes: Iterable[tuple[ConditionType, str, Reason, str]], now: datetime
) -> list[dict[str, Any]]:
    """Return a task's conditions after changes of (type, status, reason, message)."""
    current = [
        condition.model_dump(by_alias=True, exclude_none=True)
        for condition in task.status.conditions or ()
    ]
    generation = task.metadata.generation
    return update_conditions(current, changes, generation=generation, now=format_time(now))
