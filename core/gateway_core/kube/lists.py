"""Complete lists of objects, page by page."""

from collections.abc import Awaitable, Callable

from gateway_core.api.resource import Object
from gateway_core.kube.client import KubernetesClient


async def list_all(
    kube: KubernetesClient,
    plural: str,
    *,
    label_selector: str = "",
    field_selector: str = "",
    metadata_only: bool = False,
    at_version: str = "",
    shorten: Callable[[Object], Object] = lambda obj: obj,
    after_page: Callable[[], Awaitable[None]] | None = None,
) -> tuple[list[Object], str]:
    """All objects, each as `shorten` keeps it, and the resourceVersion that they are listed at.

    With `at_version` the objects of that version: several kinds can be read as of one moment,
    since all kinds of the gateway share the revisions of one etcd. Raises VersionExpired.
    """
    found: list[Object] = []
    version, token = at_version, None
    while True:
        page = await kube.list_page(
            plural,
            token=token,
            label_selector=label_selector,
            field_selector=field_selector,
            metadata_only=metadata_only,
            at_version=at_version,
        )
        if after_page is not None:
            await after_page()
        version = version or page.resource_version
        found += map(shorten, page.items)
        token = page.next_token
        if token is None:
            return found, version
