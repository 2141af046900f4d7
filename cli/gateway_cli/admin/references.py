"""Warnings of names in an object that nothing has: of models, services and their actions."""

from collections.abc import Iterable, Mapping
from typing import Any

from gateway_cli.cluster.client import Cluster
from gateway_cli.cluster.errors import ClusterError
from gateway_cli.output import print_note
from gateway_core.api.model import GatewayModel, GatewayPrompt
from gateway_core.api.resource import Object


async def warn_of_names(cluster: Cluster, obj: Object) -> Object:
    """Return the object after a warning of models and services that it names and nothing has."""
    # both load aiohttp, which help and completion do without
    from gateway_core.accounts.guardrails import LISTS
    from gateway_core.providers.offers import read_offer

    spec, is_prompt = obj["spec"], obj["kind"] == GatewayPrompt.kind_name
    lists = {name: spec[name] for name in LISTS if spec.get(name)}
    if not lists and not is_prompt:
        return obj
    try:
        models = await cluster.list_all(GatewayModel)
    except ClusterError:
        # without the right to list them nothing is known, and the change is made
        return obj
    specs = [model["spec"] for model in models]
    offer = read_offer((model["modelId"], model["service"]) for model in specs)
    unknown = _find_missing(spec, specs) if is_prompt else offer.find_unknown(lists)
    if unknown:
        print_note(f"! {unknown}; it takes effect once there is one")
    return obj


def _find_missing(prompt: Mapping[str, Any], models: Iterable[Mapping[str, Any]]) -> str:
    """Return a sentence that names what nothing offers of a prompt; empty for nothing."""
    from gateway_core.providers.suggestions import find_nearest

    operation, name = (prompt["service"], prompt["action"]), prompt.get("modelId")
    served = [
        model["modelId"] for model in models if (model["service"], model["action"]) == operation
    ]
    title = "/".join(operation)
    if not served:
        return f"service: this gateway has no model of {title}"
    if name is None or name in served:
        return ""
    near = ", ".join(find_nearest(name, served))
    return f"modelId: {name} is no model of {title}" + (f"; the nearest is {near}" if near else "")
