"""Complete lists of objects, page by page."""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from gateway_core.api.resource import Object
from gateway_core.kube.client import KubernetesClient, Page


async def list_pages(kube: KubernetesClient, plural: str, **selectors: Any) -> AsyncIterator[Page]:
    """All pages of a list; `selectors` are those of `KubernetesClient.list_page`.

    VersionExpired where the caller takes minutes for a page.
    """
    token = None
    while True:
        page = await kube.list_page(plural, token=token, **selectors)
        yield page
        token = page.next_token
        if token is None:
            return


async def list_all(
    kube: KubernetesClient,
    plural: str,
    *,
    shorten: Callable[[Object], Object] = lambda obj: obj,
    after_page: Callable[[], Awaitable[None]] | None = None,
    **selectors: Any,
) -> tuple[list[Object], str]:
    """All objects, each as `shorten` keeps it, and the resourceVersion that they are listed at.

    With `at_version` the objects of that version: several kinds can be read as of one moment,
    since all kinds of the gateway share the revisions of one etcd. VersionExpired.
    """
    found: list[Object] = []
    version = ""
    async for page in list_pages(kube, plural, **selectors):
        if after_page is not None:
            await after_page()
        version = version or page.resource_version
        found += map(shorten, page.items)
    return found, selectors.get("at_version") or version
