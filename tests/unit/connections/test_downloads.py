"""Downloads: bounds by link and by address."""

from gateway_core.storage.limits import DownloadBounds, Downloads


def test_downloads_are_bounded_by_link_and_by_address() -> None:
    downloads = Downloads(DownloadBounds(downloads=9, per_address=6, per_link=6))
    assert len(downloads) == 0
    with downloads.take("address", "link"):
        assert len(downloads) == 1
    assert len(downloads) == 0
