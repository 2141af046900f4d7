"""Objects of YAML and JSON files, in the order in which they can be applied."""

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import yaml

from gateway_cli.cluster.errors import ClusterError
from gateway_core.api.resource import Object
from gateway_core.failures import describe_failure

_FIRST = ("Namespace", "Secret", "ConfigMap", "GatewayProvider", "GatewayModel", "GatewayAccount")
"""Kinds that others refer to; the processes take any order, but warn of what is missing."""
# ten times as fast where there is libyaml: the CRDs have thousands of lines
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def read_manifests(paths: Iterable[Path]) -> list[Object]:
    """Return the objects of files (`-`: standard input) and of folders' *.yaml and *.json.

    Raises:
        ClusterError: a file cannot be read, or holds something that is no object.
    """
    found: list[Object] = []
    for path in paths:
        for file in _list_files(path):
            try:
                text = sys.stdin.read() if str(file) == "-" else file.read_text()
            except OSError as error:
                raise ClusterError(describe_failure(error)) from error
            except ValueError as error:
                raise ClusterError(f"{file}: {describe_failure(error)}") from error
            found += parse_manifests(text, str(file))
    return sorted(found, key=_rank)


def parse_manifests(text: str, source: str) -> list[Object]:
    """Return the objects of a YAML text, of lists their items. ClusterError names `source`."""
    try:
        documents = list(yaml.load_all(text, Loader=_Loader))
    except yaml.YAMLError as error:
        raise ClusterError(f"{source}: {describe_failure(error)}") from error
    objects = [obj for document in documents if document is not None for obj in _unfold(document)]
    if not all(map(_is_object, objects)):
        raise ClusterError(f"{source}: each object needs apiVersion, kind, metadata.name")
    return objects


def _list_files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    return sorted(file for file in path.iterdir() if file.suffix in (".yaml", ".yml", ".json"))


def _unfold(document: Any) -> Iterator[Any]:
    if isinstance(document, dict) and document.get("kind") == "List":
        yield from document.get("items") or ()
    else:
        yield document


def _is_object(obj: Any) -> bool:
    if not isinstance(obj, dict) or not isinstance(obj.get("metadata"), dict):
        return False
    texts = (obj.get("apiVersion"), obj.get("kind"), obj["metadata"].get("name"))
    return all(isinstance(text, str) and text for text in texts)


def _rank(obj: Object) -> int:
    return _FIRST.index(obj["kind"]) if obj["kind"] in _FIRST else len(_FIRST)
