"""Errors of calls to the Kubernetes API, named after its reasons."""

import re
from typing import NoReturn

import orjson

_NO_SPACE = "database space exceeded"
"""Part of etcd's answer to every write beyond its quota; nothing was written then."""
_NOT_TYPED = re.compile(
    r"failed to create typed patch object"
    r" \((?P<name>[^;)]*);[^)]*Kind=(?P<kind>\w+)\): (?:errors:\s*)?(?P<text>.*)",
    re.DOTALL,
)
"""A patch whose fields the schema does not have. The API server answers with 500 and Go's names."""
_GO_VALUE = re.compile(r", got &value\.[^\n]*")
_QUOTA = re.compile(r"\b(exceeded quota|status unknown for quota): ")
"""Part of the API server's answer to a create that a ResourceQuota forbids."""
_TERMINATING = re.compile(
    r"^(?!admission webhook ).*unable to create new content in namespace \S+ because it is being"
    r" terminated|not allowed while custom resource definition is terminating"
)
"""Part of its answer to a create in a namespace, or of a kind, that is being deleted."""


class KubernetesError(Exception):
    """A call failed. `status` and `message` are the API server's; 0 and empty without an answer."""

    def __init__(self, text: str = "", *, status: int = 0, message: str = "") -> None:
        super().__init__(text)
        self.status = status
        self.message = message


class AlreadyExists(KubernetesError):
    """An object of that name exists."""


class ObjectNotFound(KubernetesError):
    """No object of that name exists."""


class WriteConflict(KubernetesError):
    """The object has changed since it was read; nothing was written."""


class RequestRejected(KubernetesError):
    """The schema or an admission rule rejects the object; the text says which."""


class RequestForbidden(RequestRejected):
    """RBAC or an admission rule forbids the call; a read is only ever forbidden by RBAC."""


class KubernetesUnavailable(KubernetesError):
    """The API was not reached, or rejected the call for load; nothing was written."""


class NoSpaceLeft(KubernetesUnavailable):
    """etcd has no space left, or a ResourceQuota none for the kind; nothing was written.

    Reads and most deletes still work.
    """


class Terminating(KubernetesUnavailable):
    """The namespace or the kind is being deleted, or is gone: nothing can be created any more."""


class WriteOutcomeUnknown(KubernetesError):
    """The write was sent and not acknowledged: it may have been applied."""


class VersionExpired(KubernetesError):
    """The resourceVersion of a watch, or the token of a list, is compacted: list again."""


def raise_for_status(status: int, raw: bytes, *, writes: bool) -> NoReturn:
    """Raise the error of an answer other than 2xx; `writes` where the call was a write."""
    try:
        parsed = orjson.loads(raw)
        parsed = parsed.get("object", parsed)
        reason, message = parsed.get("reason", ""), str(parsed.get("message", ""))
    except (orjson.JSONDecodeError, AttributeError):
        reason, message = "", raw[:200].decode(errors="replace")
    if untyped := _NOT_TYPED.search(message):
        fields = " ".join(_GO_VALUE.sub("", untyped["text"]).split())
        status, reason = 422, "Invalid"
        message = f"{untyped['kind']} {untyped['name'].rpartition('/')[2]}: {fields}"
    kind: type[KubernetesError]
    match status:
        case 404:
            kind = ObjectNotFound
        case 409:
            kind = AlreadyExists if reason == "AlreadyExists" else WriteConflict
        case 410:
            kind = VersionExpired
        case 403 | 405 if _TERMINATING.search(message):
            kind = Terminating
        case 403:
            kind = NoSpaceLeft if _QUOTA.search(message) else RequestForbidden
        case 400 | 405 | 413 | 415 | 422:
            kind = RequestRejected
        case 401 | 429:
            kind = KubernetesUnavailable
        case 500 if _NO_SPACE in message:
            kind = NoSpaceLeft
        case _:
            # a proxy or a leader change may answer 5xx after the write was applied
            kind = WriteOutcomeUnknown if writes else KubernetesUnavailable
    raise kind(f"{status} {reason}: {message}"[:1000], status=status, message=message)
