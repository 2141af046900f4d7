"""What the Kubernetes API refuses, as errors that say what to do.

ClusterError
├── AlreadyThere     an object of that name is there
├── NotThere         no object of that name
├── NotServed        the cluster has no such kind
├── Conflict         the object was changed meanwhile
├── Forbidden        the credentials lack a right; the text names the verb
├── Unauthenticated  the credentials are not known
├── Refused          the object is not as its schema wants it
├── Overloaded       not now: too many requests, or an error of the server
└── Unreachable      no answer
    └── OutcomeUnknown   no answer to a write, or an error of the server: it may have been done
"""

import re

EXIT_REFUSED = 4
EXIT_UNAVAILABLE = 5
"""Exit codes of `gatewayctl`: what was asked is refused or is not there; nothing answers now."""

_DENIED = re.compile(
    r'cannot (?P<verb>\S+) resource "(?P<resource>[^"]+)" in API group "(?P<group>[^"]*)"'
    r'(?: in the namespace "(?P<namespace>[^"]+)")?'
)


class ClusterError(Exception):
    """The Kubernetes API refused or could not be reached; the text is for the user."""

    exit_code = EXIT_REFUSED


class AlreadyThere(ClusterError):
    """An object of that name is there."""


class NotThere(ClusterError):
    """There is no object of that name."""


class NotServed(ClusterError):
    """The cluster has no such kind."""


class Conflict(ClusterError):
    """The object was changed between its reading and its writing."""


class Forbidden(ClusterError):
    """The credentials lack a right."""


class Unauthenticated(ClusterError):
    """The credentials are not known to the cluster."""


class Refused(ClusterError):
    """The object is not as its schema wants it."""


class Overloaded(ClusterError):
    """The API server does not do it now."""

    exit_code = EXIT_UNAVAILABLE


class Unreachable(ClusterError):
    """The API server does not answer."""

    exit_code = EXIT_UNAVAILABLE


class OutcomeUnknown(Unreachable):
    """Whether a write was done is not known; nor is it known that it will not be done yet."""


def read_refusal(call: str, status: int, reason: str, message: str) -> ClusterError:
    """The error for an answer of the API server: its HTTP status, `reason` and `message`.

    `call` is the method and path, which is told where the message alone says too little.
    """
    match status, reason:
        case 401, _:
            return Unauthenticated(
                "the cluster does not know these credentials: log in again, or choose others"
                " with --kubeconfig or --context"
            )
        case 403, _:
            return Forbidden(_explain_denial(message))
        case 404, _ if "could not find the requested resource" in message:
            return NotServed(
                f"{call}: the cluster does not serve this kind. Is the gateway installed there"
                " (docs/install.md), and is this the right --context?"
            )
        case 404, _:
            return NotThere(message)
        case 409, "AlreadyExists":
            return AlreadyThere(message)
        case 409, _:
            return Conflict(f"{call}: {status} {message}")
        case _ if status >= 500 and not call.startswith("GET "):
            return OutcomeUnknown(f"{call}: {status} {message}")
        case _ if status == 429 or status >= 500:
            return Overloaded(f"{call}: {status} {message}")
    return Refused(message or f"{call}: {status}")


def _explain_denial(message: str) -> str:
    """The right that is missing, and how it is checked and given; else the server's own words."""
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
