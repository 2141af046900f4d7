"""Who the client is behind trusted proxies, and what limits are kept under."""

from ipaddress import ip_network

import pytest

from gateway_web.http1.connections import Proxies, name_holder

PROXIES = Proxies([ip_network("10.0.0.0/8"), ip_network("fd00::/8")])


@pytest.mark.parametrize(
    ("headers", "client"),
    [
        ([], None),
        ([(b"x-forwarded-for", b"192.0.2.1")], "192.0.2.1"),
        ([(b"x-forwarded-for", b"203.0.113.9, 192.0.2.1, 10.0.0.7")], "192.0.2.1"),
        ([(b"x-forwarded-for", b"203.0.113.9"), (b"x-forwarded-for", b"192.0.2.1")], "192.0.2.1"),
        ([(b"x-forwarded-for", b"10.0.0.9, 10.0.0.7")], "10.0.0.9"),
        ([(b"x-forwarded-for", b"192.0.2.1:4711")], "192.0.2.1"),
        ([(b"x-forwarded-for", b"[2001:db8::1]:4711")], "2001:db8::1"),
        ([(b"x-forwarded-for", b"::ffff:192.0.2.1")], "192.0.2.1"),
        ([(b"x-forwarded-for", b"192.0.2.1, nonsense")], None),
        ([(b"x-forwarded-for", b"nonsense, 10.0.0.7")], "10.0.0.7"),
        ([(b"forwarded", b'for=192.0.2.1;proto=https, for="[2001:db8::1]:80"')], "2001:db8::1"),
        ([(b"forwarded", b"proto=https;For=192.0.2.1")], "192.0.2.1"),
        ([(b"forwarded", b"for=unknown")], None),
        ([(b"forwarded", b"for=1.2.3.4"), (b"x-forwarded-for", b"192.0.2.1")], "192.0.2.1"),
    ],
)
def test_client_is_the_last_that_is_no_trusted_proxy(
    headers: list[tuple[bytes, bytes]], client: str | None
) -> None:
    assert PROXIES.find_client(headers) == client


def test_forwarded_headers_are_ignored_without_trusted_proxies() -> None:
    assert not Proxies().trusts("10.0.0.1")
    assert PROXIES.trusts("10.0.0.1")
    assert PROXIES.trusts("::ffff:10.0.0.1")
    assert not PROXIES.trusts("192.0.2.1")
    assert not PROXIES.trusts("")


def test_client_of_ipv6_is_its_network() -> None:
    assert name_holder("192.0.2.1") == "192.0.2.1"
    assert name_holder("2001:db8::1") == name_holder("2001:db8::ffff") == "2001:db8::/64"
    assert name_holder("2001:db8:0:1::1") != name_holder("2001:db8::1")
    assert name_holder("::ffff:192.0.2.1") == "192.0.2.1"
