"""Reads the cases of this folder: one YAML file a rule; README.md describes the format."""

import base64
import functools
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

FOLDER = Path(__file__).parent
_KEYS = {"rule", "create", "updates", "status", "statuses", "refused", "expect"}


class Absent:
    """Stands in `expect` for a field that must not be there."""


class _Loader(yaml.CSafeLoader):
    """YAML with `!repeat [text, times]`, `!join [text, text]` and `!absent`."""


def _repeat(loader: _Loader, node: yaml.SequenceNode) -> str:
    text, times = loader.construct_sequence(node, deep=True)
    return str(text) * times


_Loader.add_constructor("!repeat", _repeat)
_Loader.add_constructor(
    "!join", lambda loader, node: "".join(loader.construct_sequence(node, True))
)
_Loader.add_constructor("!absent", lambda *_: Absent())


@dataclass(frozen=True)
class Case:
    """What is done to a good object of a kind, and what comes of the last thing done."""

    kind: str
    rule: str
    create: Mapping[str, Any]
    updates: Sequence[Mapping[str, Any]]
    statuses: list[Mapping[str, Any]]
    refused: str | None
    expect: Mapping[str, Any]


def list_cases() -> list[Path]:
    """All case files."""
    return sorted(FOLDER.glob("cases/*/*.yaml"))


@functools.cache
def read_case(path: Path) -> Case:
    """The case in a file, of the kind its folder names."""
    raw = yaml.load(path.read_text(), _Loader)
    assert set(raw) <= _KEYS, f"{path}: unknown {set(raw) - _KEYS}"
    assert "rule" in raw, f"{path}: says no rule"
    return Case(
        kind=path.parent.name,
        rule=raw["rule"],
        create=raw.get("create", {}),
        updates=raw.get("updates", ()),
        statuses=[*raw.get("statuses", []), *([raw["status"]] if "status" in raw else [])],
        refused=raw.get("refused"),
        expect=raw.get("expect", {}),
    )


def read_base(kind: str) -> dict[str, Any]:
    """The smallest good object of a kind."""
    loaded: dict[str, Any] = yaml.safe_load((FOLDER / "bases" / f"{kind}.yaml").read_text())
    return loaded


def name_anew(base: dict[str, Any]) -> Any:
    """The object under a name that nothing has; a usage object's follows from its account's."""
    if base["kind"] == "GatewayUsage":
        account = f"usage-{secrets.token_hex(4)}"
        changes = {"metadata": {"name": f"{account}-before"}, "spec": {"accountName": account}}
        return merge(base, changes)
    prefix = base["metadata"]["name"].split("-")[0]
    rest = secrets.token_hex(4)
    if base["kind"] in ("GatewayFile", "GatewayUpload"):  # as the gateway mints them
        rest = base64.b32encode(secrets.token_bytes(20)).decode().lower()[:26]
    return merge(base, {"metadata": {"name": f"{prefix}-{rest}"}})


def merge(base: Any, patch: Any) -> Any:
    """A JSON merge patch (RFC 7396): null removes."""
    if not isinstance(patch, Mapping):
        return patch
    merged = dict(base) if isinstance(base, Mapping) else {}
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = merge(merged.get(name), value)
    return merged


def find_difference(found: Any, expected: Any, path: str = "") -> str | None:
    """Where `found` is not what is expected of it; members nobody expects are left aside."""
    if isinstance(expected, Mapping):
        if not isinstance(found, Mapping):
            return f"{path} is {found!r}"
        for name, value in expected.items():
            if isinstance(value, Absent):
                if name in found:
                    return f"{path}.{name} is there"
                continue
            if name not in found:
                return f"{path}.{name} is missing"
            difference = find_difference(found[name], value, f"{path}.{name}")
            if difference:
                return difference
        return None
    if isinstance(expected, list) and isinstance(found, list) and len(found) == len(expected):
        differences = (
            find_difference(*pair, f"{path}[{index}]")
            for index, pair in enumerate(zip(found, expected, strict=True))
        )
        return next(filter(None, differences), None)
    return None if found == expected else f"{path} is {found!r}, not {expected!r}"
