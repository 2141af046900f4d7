"""Downloads: bounds by link and by address."""

from contextlib import ExitStack

import pytest

from gateway_core.api.errors import Unavailable
from gateway_core.storage.limits import DownloadBounds, Downloads

MOST = 4
BY_LINK = DownloadBounds(downloads=9, per_address=9, per_link=MOST)
BY_ADDRESS = DownloadBounds(downloads=9, per_address=MOST, per_link=9)


@pytest.mark.parametrize(
    ("bounds", "place"),
    [(BY_LINK, "address-{} link"), (BY_ADDRESS, "address link-{}")],
    ids=["by link", "by address"],
)
def test_downloads_beyond_the_bound_are_refused_until_one_ends(
    bounds: DownloadBounds, place: str
) -> None:
    downloads = Downloads(bounds)
    with ExitStack() as stack:
        for number in range(MOST):
            stack.enter_context(downloads.take(*place.format(number).split()))
        with pytest.raises(Unavailable), downloads.take(*place.format("more").split()):
            pass
        assert (len(downloads), downloads.refused) == (MOST, 1)
        stack.enter_context(downloads.take("other address", "other link"))
    assert len(downloads) == 0
    with pytest.raises(OSError, match="broken"), downloads.take("address", "link"):
        raise OSError("broken")
    with ExitStack() as stack:
        for number in range(MOST):
            stack.enter_context(downloads.take(*place.format(number).split()))
