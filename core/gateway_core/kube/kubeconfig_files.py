"""Kubeconfig files, merged as kubectl merges them."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from gateway_core.kube.connection import NoCluster

Fields = dict[str, Any]

_SECTIONS = {"contexts": "context", "clusters": "cluster", "users": "user"}
_CONTEXT_FIELDS: dict[str, type] = {
    "cluster": str,
    "user": str,
    "namespace": str,
    "extensions": list,
}
_CLUSTER_FIELDS: dict[str, type] = {
    "server": str,
    "certificate-authority": str,
    "certificate-authority-data": str,
    "insecure-skip-tls-verify": bool,
    "tls-server-name": str,
    "proxy-url": str,
    "disable-compression": bool,
    "extensions": list,
}
_USER_FIELDS: dict[str, type] = {
    "client-certificate": str,
    "client-certificate-data": str,
    "client-key": str,
    "client-key-data": str,
    "token": str,
    "tokenFile": str,
    "username": str,
    "password": str,
    "as": str,
    "as-uid": str,
    "as-groups": list,
    "as-user-extra": dict,
    "exec": dict,
    "extensions": list,
}
_FIELDS: dict[str, dict[str, type]] = {
    "contexts": _CONTEXT_FIELDS,
    "clusters": _CLUSTER_FIELDS,
    "users": _USER_FIELDS,
}
_PATHS = ("certificate-authority", "client-certificate", "client-key", "tokenFile")
_TYPES = {str: "text", bool: "true or false", list: "a list", dict: "a mapping"}


@dataclass(slots=True)
class Files:
    """Merged files: the first entry of a name counts, and the first current context."""

    source: str
    current: str = ""
    entries: dict[str, dict[str, Fields]] = field(
        default_factory=lambda: {section: {} for section in _SECTIONS}
    )

    @property
    def is_empty(self) -> bool:
        """True if there are no entries in the files, or no files."""
        return not any(self.entries.values())

    def add(self, path: Path) -> None:
        """Add a file's entries, their paths relative to its folder. OSError, YAMLError."""
        document = yaml.safe_load(path.read_text()) or {}
        if not isinstance(document, dict):
            raise NoCluster(f"kubeconfig {path} has no fields")
        for name, expected in (("kind", "Config"), ("apiVersion", "v1")):
            if document.get(name) not in (None, "", expected):
                raise NoCluster(f"kubeconfig {path}: its {name} is not {expected}")
        self.current = self.current or _check(document, "current-context", str, str(path)) or ""
        for section, name_of_fields in _SECTIONS.items():
            added: set[str] = set()
            for entry in _check(document, section, list, str(path)) or ():
                if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
                    raise NoCluster(f"kubeconfig {path}: each of {section} needs a name")
                name = entry["name"]
                if name in added:
                    raise NoCluster(f"kubeconfig {path}: {section} has {name!r} twice")
                added.add(name)
                fields = _check(entry, name_of_fields, dict, f"{path}: {section} {name!r}") or {}
                self.entries[section].setdefault(name, _resolve_paths(fields, path.parent))

    def take(self, section: str, name: str | None) -> Fields:
        """Return the checked fields of an entry; none without a name."""
        if not name:
            return {}
        if name not in self.entries[section]:
            raise NoCluster(f"{self.source}: {section} has no {name!r}")
        where = f"{self.source}: {section} {name!r}"
        return check_fields(self.entries[section][name], _FIELDS[section], where)


def check_fields(fields: Mapping[str, Any], known: Mapping[str, type], where: str) -> Fields:
    """Return the fields that are set. NoCluster where one is unknown or of another type."""
    if "auth-provider" in fields:
        raise NoCluster(
            f"{where}: auth-provider is not supported, as in kubectl since 1.26: use an exec plugin"
        )
    for name in fields:
        if name not in known:
            raise NoCluster(f"{where}: the field {name} is not supported")
    checked = {name: _check(fields, name, kind, where) for name, kind in known.items()}
    return {name: value for name, value in checked.items() if value}


def _check(fields: Mapping[str, Any], name: str, kind: type, where: str) -> Any:
    value = fields.get(name)
    if value is not None and not isinstance(value, kind):
        raise NoCluster(f"{where}: {name} must be {_TYPES[kind]}")
    return value


def read_files(paths: list[Path], *, must_exist: bool = False) -> Files:
    """Return the merged files; those that do not exist are left out of several. NoCluster."""
    files = Files("kubeconfig " + os.pathsep.join(map(str, paths)))
    for path in paths:
        try:
            files.add(path)
        except FileNotFoundError as error:
            if must_exist:
                raise NoCluster(f"kubeconfig {path} does not exist") from error
        except (OSError, ValueError, yaml.YAMLError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is no YAML text"
            raise NoCluster(f"kubeconfig {path} cannot be read: {reason}") from error
    return files


def _resolve_paths(fields: Fields, folder: Path) -> Fields:
    """Return the fields with paths that are absolute, made from the folder of their file."""
    resolved = {
        name: _resolve(folder, value)
        if name in _PATHS and value and isinstance(value, str)
        else value
        for name, value in fields.items()
    }
    plugin = fields.get("exec")
    if isinstance(plugin, dict) and os.sep in str(plugin.get("command", "")):
        resolved["exec"] = {**plugin, "command": _resolve(folder, plugin["command"])}
    return resolved


def _resolve(folder: Path, path: str) -> str:
    """Return an absolute path, without any `..` and the part before it, as kubectl does."""
    return os.path.normpath(folder.absolute() / path)
