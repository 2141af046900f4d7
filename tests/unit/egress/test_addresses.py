"""The address policy: what may be connected to, in every form an address can be written in."""

from ipaddress import IPv4Address, IPv6Address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway_core.egress.addresses import AddressPolicy, AddressRefused

POLICY = AddressPolicy()
LOOPBACK = AddressPolicy(allowed=(ip_network("127.0.0.0/8"), ip_network("::1/128")))
ALL = AddressPolicy(allowed=(ip_network("0.0.0.0/0"), ip_network("::/0")))

PUBLIC = [
    *("1.1.1.1", "8.8.8.8", "9.255.255.255", "11.0.0.0", "100.63.255.255", "100.128.0.0"),
    *("126.255.255.255", "128.0.0.1", "169.253.255.255", "169.255.0.0", "172.15.255.255"),
    *("172.32.0.0", "192.0.1.1", "192.167.255.255", "192.169.0.0", "198.17.255.255"),
    *("198.20.0.0", "203.0.112.255", "203.0.114.0", "223.255.255.255", "168.63.129.15"),
    *("2606:4700:4700::1111", "2001:4860:4860::8888", "2001:200::1", "2a00:1450:4001::1"),
    *("::ffff:8.8.8.8", "64:ff9b::8.8.8.8"),
]

REFUSED = {
    "an unspecified address": ["0.0.0.0", "0.1.2.3", "::"],
    "a loopback address": ["127.0.0.1", "127.255.255.254", "::1", "::ffff:127.0.0.1"],
    "a metadata address": [
        *("169.254.169.254", "169.254.170.2", "169.254.170.23", "100.100.100.200"),
        *("168.63.129.16", "192.0.0.192", "fd00:ec2::254", "fd00:ec2::23", "fd20:ce::254"),
        *("::ffff:169.254.169.254", "64:ff9b::169.254.169.254", "2002:a9fe:a9fe::1"),
        *("::169.254.169.254", "::ffff:0:169.254.169.254"),
        # Teredo carries the address inverted.
        "2001:0:4136:e378:8000:63bf:5601:5601",
    ],
    "a link-local address": ["fe80::1", "fe80::1%eth0", "febf::1"],
    "a private address": [
        *("10.0.0.1", "10.255.255.255", "172.16.0.1", "172.31.255.255", "192.168.0.1"),
        *("fc00::1", "fd12:3456::1", "fec0::1", "::ffff:10.0.0.1", "64:ff9b::192.168.1.1"),
    ],
    "a shared address of a carrier": ["100.64.0.1", "100.127.255.255"],
    "a multicast address": ["224.0.0.1", "239.255.255.255", "ff02::1", "ff0e::1"],
    "a documentation address": [
        *("192.0.2.1", "198.51.100.7", "203.0.113.9", "2001:db8::1", "3fff::1", "3fff:fff::1"),
    ],
    "a benchmarking address": ["198.18.0.1", "198.19.255.255"],
    "a reserved address": [
        *("192.0.0.8", "192.0.0.170", "240.0.0.1", "255.255.255.255", "5f00::1"),
        *("2001::1", "2001:2::1", "2001:10::1", "2001:20::1", "4000::1", "8000::1", "200::1"),
        "64:ff9b::255.255.255.255",
    ],
    "a discarded address": ["100::1"],
    "a tunnelled address": [
        *("192.88.99.1", "::8.8.8.8", "::127.0.0.1", "::ffff:0:8.8.8.8", "::ffff:0:127.0.0.1"),
        *("2002:808:808::1", "2002:7f00:1::1"),
    ],
    "a translated address": ["64:ff9b:1::8.8.8.8", "64:ff9b:1::1"],
    "not an address": ["", "1.2.3", "example.com", "1.2.3.4.5", "127.1", "[::1]"],
}


@pytest.mark.parametrize("address", PUBLIC)
def test_public_address_is_permitted(address: str) -> None:
    POLICY.check_ip(address)


@pytest.mark.parametrize(
    ("address", "reason"),
    [(address, reason) for reason, addresses in REFUSED.items() for address in addresses],
)
def test_non_public_address_is_refused(address: str, reason: str) -> None:
    with pytest.raises(AddressRefused) as refused:
        POLICY.check_ip(address)
    assert refused.value.reason == reason


@pytest.mark.parametrize("address", [*REFUSED["a metadata address"]])
def test_metadata_addresses_stay_refused_whatever_is_allowed(address: str) -> None:
    with pytest.raises(AddressRefused, match="metadata"):
        ALL.check_ip(address)


@pytest.mark.parametrize("address", ["10.0.0.1", "64:ff9b::127.0.0.1", "::127.0.0.1", "fe80::1"])
def test_allowed_network_opens_no_other_address(address: str) -> None:
    with pytest.raises(AddressRefused):
        LOOPBACK.check_ip(address)


def test_public_networks_may_be_denied() -> None:
    policy = AddressPolicy(denied=(ip_network("8.8.8.0/24"), ip_network("2606:4700::/32")))
    policy.check_ip("8.8.9.1")
    for address in ("8.8.8.9", "::ffff:8.8.8.9", "64:ff9b::8.8.8.9", "2606:4700:4700::1111"):
        with pytest.raises(AddressRefused, match="cluster"):
            policy.check_ip(address)


@pytest.mark.parametrize(
    ("allowed", "denied", "inside", "outside"),
    [
        ("10.0.0.0/8", "10.9.0.0/16", "10.9.1.1", "10.8.1.1"),
        ("10.9.0.0/16", "10.0.0.0/8", "10.9.1.1", "1.1.1.1"),
        ("10.0.0.0/8", "10.0.0.0/8", "10.9.1.1", "1.1.1.1"),
        ("8.8.8.8/32", "8.8.8.0/24", "8.8.8.8", "8.8.9.1"),
        ("0.0.0.0/0", "127.0.0.0/8", "127.0.0.1", "10.8.1.1"),
        ("fd00::/8", "fd12::/16", "fd12::1", "fd13::1"),
        ("64:ff9b::/96", "10.0.0.0/8", "64:ff9b::10.0.0.1", "64:ff9b::192.168.0.1"),
    ],
)
def test_denied_networks_win_over_allowed_ones(
    allowed: str, denied: str, inside: str, outside: str
) -> None:
    policy = AddressPolicy((ip_network(allowed),), (ip_network(denied),))
    assert policy.permits(outside)
    assert not policy.permits(inside)
    if ":" not in inside:
        assert not policy.permits(f"::ffff:{inside}")
        with pytest.raises(AddressRefused):
            policy.check_url_literal(f"http://{inside}/")


@given(st.ip_addresses(), st.integers(0, 32))
def test_address_of_a_denied_network_is_refused(
    address: IPv4Address | IPv6Address, length: int
) -> None:
    network = ip_network(f"{address}/{length}", strict=False)
    for policy in (AddressPolicy(denied=(network,)), AddressPolicy(ALL.allowed, (network,))):
        assert not policy.permits(address)


def test_unspecified_address_is_denied_with_loopback() -> None:
    closed = AddressPolicy(ALL.allowed, (ip_network("127.0.0.0/8"), ip_network("::1/128")))
    for address in ("0.0.0.0", "::", "::ffff:0.0.0.0", "127.0.0.1", "::1"):
        assert ALL.permits(address)
        assert not closed.permits(address)
    with pytest.raises(AddressRefused):
        closed.check_url_literal("http://localhost/")


@given(st.ip_addresses(v=4))
def test_ipv4_address_is_judged_alike_in_every_wrapping(address: IPv4Address) -> None:
    def is_refused(ip: object) -> bool:
        try:
            POLICY.check_ip(str(ip))
        except AddressRefused:
            return True
        return False

    number = int(address)
    plain = is_refused(address)
    assert plain or address.is_global
    assert is_refused(IPv6Address((0xFFFF << 32) | number)) == plain
    assert is_refused(IPv6Address((0x64FF9B << 96) | number)) == plain
    assert is_refused(IPv6Address((0x2002 << 112) | number << 80))
    assert is_refused(IPv6Address(number))


@pytest.mark.parametrize(
    "url",
    [
        *("http://127.0.0.1/", "http://127.0.0.1:8080/x?y#z", "https://10.1.2.3", "http://0/"),
        *("http://2130706433/", "http://0x7f000001/", "http://0x7f.1/", "http://0X7F.0.0.1/"),
        *("http://017700000001/", "http://0177.0.0.1/", "http://127.1/", "http://127.0.1"),
        *("http://127.0.0.1./", "http://%31%32%37.0.0.1/", "http://\uff11\uff12\uff17.0.0.1/"),
        *(
            "http://127\u30020\u30020\u30021/",
            "http://127\uff0e0.0.1/",
            "http://127\uff610.0.1/",
            "http://\u2460\u2461\u2466.1/",
        ),
        *("http://[::1]/", "http://[::ffff:127.0.0.1]/", "http://[::ffff:7f00:1]:80/"),
        *("http://[0:0:0:0:0:0:0:1]/", "http://[fe80::1%25eth0]/", "http://[::]/"),
        *("http://localhost/", "http://LOCALHOST:80/", "http://localhost./", "http://a.localhost"),
        *(
            "http://\uff4c\uff4f\uff43\uff41\uff4c\uff48\uff4f\uff53\uff54/",
            "http://169.254.169.254/latest/meta-data",
            "http://0xa9fea9fe/",
        ),
        *("http://user:pass@127.0.0.1/", "http://example.com@127.0.0.1/", "//127.0.0.1/"),
        *(
            "http://256.1.1.1/",
            "http://1.2.3.4.0/",
            "http://1.2.3.4.5/",
            "http://4294967296/",
            "http://08.1.1.1/",
        ),
        *("http://example.127/", "http://0x/", "http:///path", "http://", "", "http://[::1/"),
        *("http://[v1.fe]/", "http://127.0.0.1\\@example.com/", "http://exa\tmple.1/"),
    ],
)
def test_bad_literal_hosts_are_refused_at_once(url: str) -> None:
    with pytest.raises(AddressRefused):
        POLICY.check_url_literal(url)


@pytest.mark.parametrize(
    "url",
    [
        *("https://example.com/", "http://8.8.8.8/", "http://134744072/", "http://0x8.8.2056/"),
        *("http://[2606:4700:4700::1111]/", "https://localhost.example.com/", "https://münchen.de"),
        *("https://mylocalhost/", "https://127.0.0.1.example.com/", "https://1.example.com./"),
        *("https://user@example.com:8443/a?b=127.0.0.1#c", "http://0x7f.example/", "http://cafe"),
    ],
)
def test_names_and_public_literals_pass(url: str) -> None:
    POLICY.check_url_literal(url)


def test_loopback_may_be_allowed() -> None:
    for address in ("127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1"):
        LOOPBACK.check_ip(address)
    for host in ("127.0.0.1:9", "localhost", "x.localhost", "[::1]", "2130706433", "127.1"):
        LOOPBACK.check_url_literal(f"http://{host}/")
