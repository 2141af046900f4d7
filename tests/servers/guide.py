"""The worked examples of docs/providers.md: objects, and packages that offer code adapters."""

import copy
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from gateway_core.providers.upstream import GROUP

ROOT = Path(__file__).resolve().parents[2]
GUIDE = (ROOT / "docs/providers.md").read_text()


def read_example(name: str) -> dict[str, dict[str, Any]]:
    """The objects of the example whose provider is called `name`, by kind."""
    for block in re.findall(r"```yaml\n(.*?)```", GUIDE, re.DOTALL):
        objects = {item["kind"]: item for item in yaml.safe_load_all(block)}
        if objects.get("GatewayProvider", {}).get("metadata", {}).get("name") == name:
            return objects
    raise AssertionError(f"docs/providers.md has no provider {name}")


def lead_to(
    example: dict[str, dict[str, Any]], url: str, credential: str, **poll: Any
) -> dict[str, dict[str, Any]]:
    """The same with another address, outputs on localhost, and changes to `http.poll`."""
    led = copy.deepcopy(example)
    http = led["GatewayProvider"]["spec"]["http"]
    http["baseUrl"], http["outputHosts"] = url, ["localhost"]
    http["poll"] |= poll
    (key,) = led["Secret"]["stringData"]
    led["Secret"]["stringData"][key] = credential
    return led


def install(folder: Path, package: str, source: str, **factories: str) -> None:
    """A package of one module in `folder`; `factories` are the module's members by type."""
    (folder / f"{package}.py").write_text(source)
    about = folder / f"{package}-1.0.dist-info"
    about.mkdir(exist_ok=True)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    lines = [f"{name} = {package}:{member}" for name, member in factories.items()]
    (about / "entry_points.txt").write_text("\n".join([f"[{GROUP}]", *lines, ""]))


def install_example(folder: Path) -> None:
    """The complete example of docs/providers.md."""
    project = re.search(r"```toml\n(.*?)```", GUIDE, re.DOTALL)
    source = re.search(r'```python\n("""The adapter `signed`.*?)```', GUIDE, re.DOTALL)
    assert project is not None
    assert source is not None
    found = re.search(rf'entry-points."{GROUP}"\]\nsigned = "(\w+):(\w+)"', project[1])
    assert found is not None
    install(folder, found[1], source[1], signed=found[2])


@contextmanager
def on_path(folder: Path) -> Iterator[None]:
    """Has this process find what is installed in `folder`, and forget it afterwards."""
    before = set(sys.modules)
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        for name in set(sys.modules) - before:
            if str(folder) in str(getattr(sys.modules[name], "__file__", "")):
                del sys.modules[name]
