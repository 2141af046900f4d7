"""GatewayKey, the format and digest of API keys (contract §0.10), and their Secrets."""

import hashlib
import hmac
import re
import secrets
import string
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Annotated, Any, ClassVar, Literal

from pydantic import ConfigDict, Field

from gateway_core.api.limits import CallLimits, SpentStatus, bound_size
from gateway_core.api.resource import (
    AGE,
    IMMUTABLE,
    MESSAGE_COLUMN,
    READY_COLUMNS,
    Name,
    Part,
    Resource,
    Sha256,
    Time,
    checked,
    map_list,
    rule,
)

KeyClass = Literal["Standard", "Management"]

_BASE62 = string.digits + string.ascii_uppercase + string.ascii_lowercase
_PAIRS = tuple(high + low for high in _BASE62 for low in _BASE62)
_BASE32 = "abcdefghijklmnopqrstuvwxyz234567"
_PREFIX: dict[KeyClass, str] = {"Standard": "sk", "Management": "mk"}
_SHAPE = re.compile(r"(sk|mk)-([a-z2-7]{8})_([0-9A-Za-z]{32})([0-9A-Za-z]{6})")


@dataclass(frozen=True, slots=True)
class MintedKey:
    """A new key. `plaintext` is shown once and never stored."""

    plaintext: str
    id: str
    hint: str


@dataclass(frozen=True, slots=True)
class ParsedKey:
    """A well-formed key: its class and the 8-character id for the look-up."""

    key_class: KeyClass
    id: str


def mint_key(key_class: KeyClass = "Standard") -> MintedKey:
    """Return a new random key of 190 bits."""
    key_id = "".join(secrets.choice(_BASE32) for _ in range(8))
    secret = "".join(secrets.choice(_BASE62) for _ in range(32))
    head = f"{_PREFIX[key_class]}-{key_id}_{secret}"
    plaintext = head + _checksum(head)
    return MintedKey(plaintext=plaintext, id=key_id, hint=hint_of(plaintext))


def hint_of(plaintext: str) -> str:
    """Return the part of a key that lists show, for people to recognise it."""
    return f"{plaintext[:7]}…{plaintext[-4:]}"


def parse_key(text: str) -> ParsedKey | None:
    """Return the parts of a well-formed key, or None: a mistyped one is not looked up."""
    match = _SHAPE.fullmatch(text)
    if match is None or _checksum(text[:-6]) != match[4]:
        return None
    return ParsedKey(key_class="Standard" if match[1] == "sk" else "Management", id=match[2])


def digest(plaintext: str, pepper: bytes) -> str:
    """Return the stored digest of a key: hex HMAC-SHA256 under a pepper of no custom resource."""
    code = _begin_digest(pepper).copy()
    code.update(plaintext.encode())
    return code.hexdigest()


@lru_cache(maxsize=64)
def _begin_digest(pepper: bytes) -> hmac.HMAC:
    """HMAC without a message, cached: a third of the work is the same for every key."""
    return hmac.new(pepper, digestmod=hashlib.sha256)


def _checksum(head: str) -> str:
    """Return the CRC32 in base 62; computed at every request."""
    high, low = divmod(zlib.crc32(head.encode()), 62**4)
    middle, low = divmod(low, 62**2)
    return _PAIRS[high] + _PAIRS[middle] + _PAIRS[low]


@dataclass(frozen=True, slots=True)
class Secret:
    """A Secret with decoded data.

    `owners` are its ownerReferences. `version` is the resourceVersion that was read; empty for a
    new one.
    """

    name: str
    data: Mapping[str, bytes] = field(repr=False)
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    owners: tuple[Mapping[str, Any], ...] = ()
    version: str = ""


KEY_PREFIX = "key"
MOST_METADATA = 16
MOST_REVOKED = 1000
"""Revoked keys kept for each account; the operator removes the oldest."""
MOST_OVERLAP_SECONDS = 604_800

KEY_NAME_RULE = rule(
    "self.metadata.name.matches('^key-[a-z0-9-]{0,57}[a-z0-9]$')",
    "metadata.name must be `key-` and 1 to 58 lowercase letters, digits or dashes",
)


class KeyToken(Part):
    """A token that opens this key; there are two while one is rotated out."""

    id: Annotated[
        str,
        Field(
            max_length=8,
            pattern=r"^[a-z2-7]{8}$",
            description="Key id: the 8 characters after `sk-` or `mk-`, by which a key is found.",
        ),
    ]
    digest: Annotated[
        Sha256,
        Field(
            description="Hex HMAC-SHA256 of the whole key under the pepper; the key itself is"
            " stored nowhere."
        ),
    ]
    pepper_version: Annotated[
        int,
        Field(
            ge=1,
            le=1000,
            description="Version of the pepper under which the digest was made; default 1.",
        ),
    ] = 1
    hint: Annotated[
        str,
        Field(
            max_length=16,
            description="First and last characters of the key, by which people recognise it.",
        ),
    ]
    expiration_time: Annotated[
        Time | None,
        Field(
            description="When this token stops being accepted: the end of a rotation's overlap."
            " Absent: with the key."
        ),
    ] = None


class KeySpec(CallLimits):
    """A key as declared; its plaintext is nowhere in it."""

    model_config = ConfigDict(
        json_schema_extra=checked(
            rule(
                "has(self.tokens) != has(self.secretName)",
                "exactly one of `tokens` and `secretName` must be specified",
            ),
            rule(
                "has(oldSelf.secretName) == has(self.secretName)",
                "a key stays with `tokens` or with `secretName`",
            ),
            bound_size("allowedModels", "allowedProviders", notes="metadata"),
        )
    )

    account_name: Annotated[
        Name,
        Field(
            json_schema_extra=IMMUTABLE,
            description="Name of the GatewayAccount that the key belongs to; cannot be changed.",
        ),
    ]
    class_: Annotated[
        Literal["Standard", "Management"],
        Field(
            alias="class",
            json_schema_extra=IMMUTABLE,
            description="Standard keys call models, files, batches and account endpoints;"
            " Management keys call Platform Management only. Default Standard; cannot"
            " be changed.",
        ),
    ] = "Standard"
    display_name: Annotated[
        str, Field(min_length=1, max_length=100, description="Name of the key for people.")
    ]
    created_by: Annotated[
        Name | None,
        Field(
            description="Name of the GatewayUser who made it and whose role it acts with; cannot be"
            " changed. Absent: it acts as a member.",
            json_schema_extra=IMMUTABLE,
        ),
    ] = None
    tokens: Annotated[
        list[KeyToken] | None,
        Field(
            min_length=1,
            description="Digests of the keys that are accepted: one, or two during a rotation."
            " Exactly one of tokens and secretName is specified.",
        ),
        map_list("id", max_items=2),
    ] = None
    secret_name: Annotated[
        str | None,
        Field(
            min_length=1,
            max_length=253,
            pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$",
            description="Name of the Secret into which the operator writes the key, under"
            " `api-key`; the operator makes the key.",
        ),
    ] = None
    rotations: Annotated[
        int,
        Field(
            ge=0,
            le=1000000,
            description="Raise it to have the operator write a new key into the Secret; default 0."
            " Only with secretName.",
            json_schema_extra=checked(rule("self >= oldSelf", "may only be raised")),
        ),
    ] = 0
    overlap_seconds: Annotated[
        int,
        Field(
            ge=0,
            le=MOST_OVERLAP_SECONDS,
            description="Seconds for which the previous key is still accepted after a rotation by"
            " the operator; default 0.",
        ),
    ] = 0
    disabled: Annotated[
        bool, Field(description="Refuse the key with 401 while it is true; default false.")
    ] = False
    log_content: Annotated[
        bool,
        Field(
            description="Write prompts and answers of the key's LLM calls to the request log, at"
            " most 8 KiB of each; default false. Platform Management cannot set it."
        ),
    ] = False
    revoked: Annotated[
        bool,
        Field(
            json_schema_extra=checked(
                rule("self || !oldSelf", "may not be changed back once true")
            ),
            description="Refuse the key with 401 for good; default false. It cannot be undone.",
        ),
    ] = False
    expiration_time: Annotated[
        Time | None, Field(description="When the key stops being accepted. Absent: never.")
    ] = None
    metadata: Annotated[
        dict[str, Annotated[str, Field(max_length=512)]] | None,
        Field(
            max_length=MOST_METADATA,
            description="Notes of the client, up to 16 names with values.",
            json_schema_extra=checked(
                rule("self.all(name, size(name) <= 64)", "names have at most 64 characters")
            ),
        ),
    ] = None


class KeyStatus(SpentStatus):
    """The operator's tokens of a declared key, and what the key has spent as of the last look."""

    tokens: Annotated[
        list[KeyToken] | None,
        Field(description="Digests of the keys that the operator made for secretName."),
        map_list("id", max_items=2),
    ] = None
    rotations: Annotated[
        int | None,
        Field(
            ge=0,
            le=1000000,
            description="Value of spec.rotations that the operator has carried out.",
        ),
    ] = None
    secret_name: Annotated[
        str | None,
        Field(max_length=253, description="Name of the Secret that the operator has written."),
    ] = None
    last_used_time: Annotated[
        Time | None,
        Field(description="When the key was last accepted; updated by a sweep, minutes later."),
    ] = None


class GatewayKey(Resource):
    """An API key of one account; only digests of its tokens are kept."""

    kind_name: ClassVar[str] = "GatewayKey"
    plural: ClassVar[str] = "gatewaykeys"
    short_name: ClassVar[str] = "gwkey"
    columns: ClassVar[list[Any]] = [
        ("Account", "string", ".spec.accountName", 0),
        ("Class", "string", ".spec.class", 0),
        ("Hint", "string", ".spec.tokens[0].hint", 0),
        ("Used", "string", ".status.used", 0),
        ("Window", "string", ".spec.limit.window", 0),
        *READY_COLUMNS,
        ("Display", "string", ".spec.displayName", 1),
        ("Creator", "string", ".spec.createdBy", 1),
        ("Limit", "string", ".status.limit", 1),
        ("LastUsed", "date", ".status.lastUsedTime", 1),
        ("Expires", "string", ".spec.expirationTime", 1),
        ("LogsContent", "boolean", ".spec.logContent", 1),
        MESSAGE_COLUMN,
        AGE,
    ]
    selectable: ClassVar[list[str]] = [".spec.accountName", ".spec.class", ".spec.revoked"]

    rules: ClassVar[list[dict[str, Any]]] = [KEY_NAME_RULE]

    spec: KeySpec
    status: KeyStatus = Field(default_factory=KeyStatus)
