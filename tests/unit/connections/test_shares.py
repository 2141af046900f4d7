"""AccountLimiter of a bounded amount: one holder never has all of it."""

from gateway_apiserver.middleware.downloads import DownloadBounds, Downloads, DynamicLimiter


def fill(shares: DynamicLimiter, holder: str) -> int:
    count = 0
    while shares.may_take(holder):
        shares.take(holder)
        count += 1
    return count


def test_a_holder_alone_has_its_bound_and_leaves_some_for_others() -> None:
    shares = DynamicLimiter(640, 560)
    assert fill(shares, "a") == 560
    second = fill(shares, "b")
    assert 60 < second < 80
    assert fill(shares, "c") > 0
    for _ in range(560):
        shares.give_back("a")
    assert fill(shares, "b") > 300
    assert shares.held <= 640


def test_a_bound_over_the_total_is_the_total() -> None:
    shares = DynamicLimiter(5, 9)
    assert fill(shares, "a") == 5
    assert not shares.may_take("b")


def test_sizes_count() -> None:
    shares = DynamicLimiter(100, 60)
    assert not shares.may_take("a", 61)
    shares.take("a", 60)
    assert not shares.may_take("b", 40)
    assert shares.may_take("b", 24)


def test_downloads_are_bounded_by_link_and_by_address() -> None:
    downloads = Downloads(DownloadBounds(downloads=9, per_address=6, per_link=6))
    assert len(downloads) == 0
    with downloads.take("address", "link"):
        assert len(downloads) == 1
    assert len(downloads) == 0
