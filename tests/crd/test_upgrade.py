"""Objects that an older schema took can still be updated after the CRDs are upgraded."""

import copy
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway_cli.cluster.errors import ClusterError
from tests.crd.casefile import merge, name_anew, read_base
from tests.servers.control_plane import ROOT, ControlPlane

GROUP = "upgrade.example.com"


def drop_bounds(schema: Any) -> Any:
    """A schema without CEL rules and lengths, as an older one may be."""
    if isinstance(schema, dict):
        dropped = ("x-kubernetes-validations", "maxLength", "optionalOldSelf")
        return {name: drop_bounds(each) for name, each in schema.items() if name not in dropped}
    return schema


class Upgrade:
    """A copy of a CRD in a group of its own, first with the older schema."""

    def __init__(self, plane: ControlPlane, plural: str, folder: Path) -> None:
        self._plane = plane
        self._folder = folder
        self._new = yaml.safe_load((ROOT / f"crds/{plural}.yaml").read_text())
        names = self._new["spec"]["names"]
        for name in ("shortNames", "categories"):
            names.pop(name, None)
        self._new["spec"]["group"] = GROUP
        self._new["metadata"] = {"name": f"{plural}.{GROUP}"}
        self.plural = f"{plural}.{GROUP}"
        old = copy.deepcopy(self._new)
        [version] = old["spec"]["versions"]
        version["schema"]["openAPIV3Schema"] = drop_bounds(version["schema"]["openAPIV3Schema"])
        self._apply(old)
        plane.kubectl("wait", "--for=condition=Established", f"crd/{self.plural}")

    def _apply(self, obj: Any, *options: str) -> None:
        path = self._folder / "object.yaml"
        path.write_text(yaml.safe_dump(obj))
        self._plane.kubectl("apply", "--server-side", *options, "-f", str(path))

    def create(self, kind: str, changes: Any) -> dict[str, Any]:
        """An object of the base of `kind`, changed; its status too."""
        obj = merge(name_anew(read_base(kind)), changes)
        obj["apiVersion"] = f"{GROUP}/v1alpha1"
        retry(lambda: self._apply(obj))
        if "status" in obj:
            self.patch(obj, {"status": obj["status"]})
        return obj

    def patch(self, obj: Any, patch: Any) -> None:
        """A merge patch; ClusterError if it is refused."""
        options = ("--subresource=status",) if "status" in patch else ()
        name = obj["metadata"]["name"]
        text = json.dumps(patch)
        self._plane.kubectl("patch", self.plural, name, "--type=merge", *options, "-p", text)

    def upgrade(self, obj: Any, refused: Any) -> None:
        """Installs the new schema and waits until it refuses the patch `refused`."""
        self._apply(self._new)

        def check() -> None:
            with pytest.raises(ClusterError):
                self.patch(obj, refused)

        retry(check)

    def remove(self) -> None:
        self._plane.kubectl("delete", "crd", self.plural)


def retry(act: Callable[[], None], seconds: float = 20) -> None:
    """Does it until it succeeds: kube-apiserver serves a changed CRD after a moment."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return act()
        except (ClusterError, pytest.fail.Exception):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


@pytest.fixture
def install(control_plane: ControlPlane, tmp_path: Path) -> Iterator[Callable[[str], Upgrade]]:
    made: list[Upgrade] = []

    def start(plural: str) -> Upgrade:
        made.append(Upgrade(control_plane, plural, tmp_path))
        return made[-1]

    yield start
    for each in made:
        each.remove()


def test_key_can_be_taken_out_of_guardrail_over_the_bound(
    install: Callable[[str], Upgrade],
) -> None:
    crd = install("gatewayguardrails")
    entries = [f"{n:03}{'x' * 247}" for n in range(64)]
    obj = crd.create(
        "guardrail",
        {"spec": {"allowedModels": entries, "deniedModels": entries, "keyNames": ["a", "b"]}},
    )
    crd.upgrade(obj, refused={"spec": {"deniedModels": [*entries[:63], "y" * 251]}})
    crd.patch(obj, {"spec": {"keyNames": ["a"]}})
    crd.patch(obj, {"spec": {"deniedModels": entries[:63]}})


def test_key_over_the_bound_can_be_revoked(install: Callable[[str], Upgrade]) -> None:
    crd = install("gatewaykeys")
    entries = [f"{n:03}{'x' * 247}" for n in range(64)]
    obj = crd.create("key", {"spec": {"allowedModels": entries, "allowedProviders": entries}})
    crd.upgrade(obj, refused={"spec": {"allowedModels": [*entries[:63], "y" * 251]}})
    crd.patch(obj, {"spec": {"revoked": True}})


def test_batch_with_a_longer_message_can_be_settled(install: Callable[[str], Upgrade]) -> None:
    crd = install("gatewaybatches")
    error = {"code": "invalid_json", "message": "m" * 512}
    obj = crd.create("batch", {"status": {"phase": "Failed", "errors": [error]}})
    crd.upgrade(obj, refused={"status": {"errors": [{**error, "message": "n" * 512}]}})
    crd.patch(obj, {"status": {"work": "Settled"}})
