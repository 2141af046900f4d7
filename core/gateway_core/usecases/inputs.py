"""A task's input: inline in the object up to 8 KiB, else in the object store.

Written by the API before the object that names it, read by the operator.
"""

import hashlib
import re
from typing import Any

import orjson

from gateway_core.contract.task import MAX_INLINE_INPUT, TaskRequest
from gateway_core.domain.operations import MAX_BODY_BYTES
from gateway_core.ports.objects import ObjectStore

_NOT_IN_YAML = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")
"""Characters that YAML has no place for, or reads as line breaks: with one of the former in an
object, kubectl can print no list that it is in."""


class InputDamaged(Exception):
    """The stored input is not what the task refers to."""


async def store_input(
    store: ObjectStore, account: str, name: str, canonical: bytes
) -> dict[str, Any]:
    """The member of `spec.request` that carries this input: `input` or `inputRef`."""
    text = _NOT_IN_YAML.sub(lambda found: f"\\u{ord(found[0]):04x}", canonical.decode())
    if len(text.encode()) <= MAX_INLINE_INPUT:
        return {"input": text}
    stored = await store.put(f"inputs/{account}/{name}.json", canonical)
    digest = hashlib.sha256(canonical).hexdigest()
    return {"inputRef": {"key": stored.key, "bytes": len(canonical), "sha256": digest}}


async def load_input(store: ObjectStore, request: TaskRequest) -> dict[str, Any]:
    """The input as an object.

    Raises:
        InputDamaged: it is no JSON object, or not the bytes that were stored.
        ObjectMissing, StoreUnavailable: from the store.
    """
    if request.input_ref is None:
        raw = (request.input or "").encode()
    else:
        ref = request.input_ref
        if not ref.key.startswith(f"inputs/{request.account_name}/"):
            raise InputDamaged("the stored input is not the account's")
        try:
            if (await store.head(ref.key)).bytes != ref.bytes or ref.bytes > MAX_BODY_BYTES:
                raise InputDamaged("the stored input has another size")
            raw = await store.get(ref.key)
        except ValueError:
            raise InputDamaged("the stored input's key is not one") from None
        if hashlib.sha256(raw).hexdigest() != request.input_ref.sha256:
            raise InputDamaged("the stored input does not match its digest")
    try:
        value = orjson.loads(raw)
    except orjson.JSONDecodeError:
        raise InputDamaged("the input is not valid JSON") from None
    if not isinstance(value, dict):
        raise InputDamaged("the input is not a JSON object")
    return value
