"""Refusals of the Kubernetes API as errors that say what to do."""

import re

from gateway_cli.session import EXIT_REFUSED, EXIT_UNAVAILABLE, CommandError
from gateway_core.api.conditions import Reason
from gateway_core.api.resource import Object
from gateway_core.failures import describe_failure
from gateway_core.kube.errors import (
    AlreadyExists,
    KubernetesError,
    KubernetesUnavailable,
    ObjectNotFound,
    RequestForbidden,
    Terminating,
    WriteConflict,
    WriteOutcomeUnknown,
)

_DENIED = re.compile(
    r'cannot (?P<verb>\S+) resource "(?P<resource>[^"]+)" in API group "(?P<group>[^"]*)"'
    r'(?: in the namespace "(?P<namespace>[^"]+)")?'
)


class ClusterError(CommandError):
    """The Kubernetes API refused or could not be reached."""

    exit_code = EXIT_REFUSED


class AlreadyThere(ClusterError):
    """An object of that name is there."""


class BeingRemoved(ClusterError):
    """An object of that name is there, and is being deleted."""


class NotThere(ClusterError):
    """There is no object of that name."""


class NotServed(ClusterError):
    """The cluster has no such kind."""


class Conflict(ClusterError):
    """The object was changed between its reading and its writing."""


class Forbidden(ClusterError):
    """The credentials lack a right."""


class Unreachable(ClusterError):
    """The API server does not do it now."""

    exit_code = EXIT_UNAVAILABLE


class OutcomeUnknown(Unreachable):
    """Whether a write was done is not known; nor is it known that it will not be done yet."""


def explain_refusal(error: KubernetesError, call: str) -> ClusterError:
    """Return the error for the user. `call` is the method and path, e.g. `GET /api/v1/…`."""
    told = f"{call}: {error.status} {error.message}"
    match error:
        case KubernetesError(status=401):
            return ClusterError(
                "the cluster does not know these credentials: log in again, or choose others"
                " with --kubeconfig or --context"
            )
        case RequestForbidden() | Terminating():
            return Forbidden(_explain_denial(error.message))
        case ObjectNotFound() if "could not find the requested resource" in error.message:
            return NotServed(
                f"{call}: the cluster does not serve this kind. Is the gateway installed there"
                " (docs/install.md), and is this the right --context?"
            )
        case ObjectNotFound():
            return NotThere(error.message)
        case AlreadyExists():
            return AlreadyThere(error.message)
        case WriteConflict():
            return Conflict(told)
        case WriteOutcomeUnknown():
            return OutcomeUnknown(told if error.status else explain_silence(error, call))
        case KubernetesUnavailable():
            return Unreachable(told if error.status else explain_silence(error, call))
    return ClusterError(error.message or told)


def refuse_removed(obj: Object) -> Object:
    """Return the object. BeingRemoved, with the reason of the delay, if it is being deleted."""
    if "deletionTimestamp" in obj.get("metadata", {}):
        name = f"{obj['kind']} {obj['metadata']['name']}"
        raise BeingRemoved(f"another {name} is still there: {explain_stay(obj)}")
    return obj


def explain_stay(obj: Object) -> str:
    """Return the reason in its status for which a deleted object is still there."""
    conditions = (obj.get("status") or {}).get("conditions") or ()
    removing = (c["message"] for c in conditions if c["reason"] == Reason.REMOVING)
    return str(next(removing, "being removed; is an operator running?"))


def explain_silence(error: Exception, call: str) -> str:
    """Return the text for a call without an answer that can be read."""
    cause = error.__cause__ or error
    return (
        f"the Kubernetes API does not answer {call} ({describe_failure(cause)}). Is this the"
        " right --kubeconfig and --context, and is the cluster up?"
    )


def _explain_denial(message: str) -> str:
    """Return the right that is missing and how to give it, else the server's own words."""
    match = _DENIED.search(message)
    if match is None:
        return message
    verb, resource, group = match["verb"], match["resource"], match["group"]
    where = f" in namespace {match['namespace']}" if match["namespace"] else ""
    option = f" --namespace {match['namespace']}" if match["namespace"] else ""
    kind = f"{resource}.{group}" if group else resource
    return (
        f"you may not {verb} {resource}{where}. Needed is a Role with the verb `{verb}` on"
        f" `{resource}` of the API group `{group}`; `kubectl auth can-i {verb} {kind}{option}`"
        " tells whether you have it"
    )
