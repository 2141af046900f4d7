"""Reads the objects of YAML files, in the order in which they can be applied."""

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import yaml

from gateway_cli.cluster import Object
from gateway_cli.cluster.errors import ClusterError

_FIRST = ("Namespace", "Secret", "ConfigMap", "GatewayProvider", "GatewayModel", "GatewayAccount")
"""Kinds that others refer to; the processes take any order, but warn of what is missing."""


def read_manifests(paths: Iterable[Path]) -> list[Object]:
    """Every object of the files, `-` being standard input, and of the folders' *.yaml and *.json.

    Raises:
        ClusterError: a file cannot be read, or holds something that is no object.
    """
    objects = [obj for path in paths for file in _list_files(path) for obj in _read(file)]
    return sorted(objects, key=_rank)


def _list_files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    return sorted(file for file in path.iterdir() if file.suffix in (".yaml", ".yml", ".json"))


def _read(path: Path) -> Iterator[Object]:
    try:
        text = sys.stdin.read() if str(path) == "-" else path.read_text()
        documents = list(yaml.safe_load_all(text))
    except (OSError, yaml.YAMLError) as error:
        raise ClusterError(f"{path}: {error}") from error
    for document in documents:
        if document is None:
            continue
        for obj in _unfold(document):
            if not _is_object(obj):
                raise ClusterError(f"{path}: each object needs apiVersion, kind, metadata.name")
            yield obj


def _unfold(document: Any) -> list[Any]:
    """The items of a List, or the document itself."""
    if isinstance(document, dict) and document.get("kind") == "List":
        return list(document.get("items") or ())
    return [document]


def _is_object(obj: Any) -> bool:
    if not isinstance(obj, dict) or not isinstance(obj.get("metadata"), dict):
        return False
    texts = (obj.get("apiVersion"), obj.get("kind"), obj["metadata"].get("name"))
    return all(isinstance(text, str) and text for text in texts)


def _rank(obj: Object) -> int:
    return _FIRST.index(obj["kind"]) if obj["kind"] in _FIRST else len(_FIRST)
