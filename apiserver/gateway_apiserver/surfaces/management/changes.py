"""Changes of a caller, as `core/accounts/changes.py` notes them on objects."""

from gateway_core.accounts.authentication import Principal
from gateway_core.accounts.changes import note_change
from gateway_core.api.resource import Object
from gateway_core.kube.clock import CLOCK


def record_change(obj: Object | None, caller: Principal, text: str) -> dict[str, str]:
    """Annotations of the object's next version, in which the caller's change is noted."""
    return note_change(obj, name_caller(caller), text, CLOCK.now())


def name_caller(caller: Principal) -> str:
    """`user/<name>` of who is signed in, else `key/<name>`."""
    key, user = caller.key, caller.creator
    # what a session acts with has no secret
    return f"user/{user.name}" if user is not None and not key.tokens else f"key/{key.name}"
