"""The worked examples of docs/providers.md, as they stand there or led to a server of a test."""

import copy
import re
from pathlib import Path
from typing import Any

import yaml

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
