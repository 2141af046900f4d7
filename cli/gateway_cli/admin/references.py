"""Warnings of names that an object lists and that nothing has."""

from gateway_cli.cluster.client import Cluster
from gateway_cli.cluster.errors import ClusterError
from gateway_cli.output import print_note
from gateway_core.api.model import GatewayModel
from gateway_core.api.resource import Object


async def warn_of_names(cluster: Cluster, obj: Object) -> Object:
    """Print a warning of models and services in the object's lists that nothing has; the object."""
    # both load aiohttp, which help and completion do without
    from gateway_core.accounts.guardrails import LISTS
    from gateway_core.providers.offers import read_offer

    lists = {name: obj["spec"][name] for name in LISTS if obj["spec"].get(name)}
    if not lists:
        return obj
    try:
        models = await cluster.list_all(GatewayModel)
    except ClusterError:
        # without the right to list them nothing is known, and the change is made
        return obj
    offer = read_offer((model["spec"]["modelId"], model["spec"]["service"]) for model in models)
    if unknown := offer.find_unknown(lists):
        print_note(f"! {unknown}; it takes effect once there is one")
    return obj
