"""Policy of the addresses that URLs of clients and providers may lead to (contract §11.6).

For callbacks, sources and outputs. `check_url_literal` rejects a URL with a forbidden literal
address at once; `check_ip` checks the address of each connection, since a name may resolve to any
address, and to another one each time (DNS rebinding).
"""

import re
import unicodedata
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from urllib.parse import unquote, urlsplit

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network


class AddressRefused(Exception):
    """The address is forbidden; `reason` says what it is, e.g. `a loopback address`."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    @property
    def problem(self) -> str:
        """What is wrong with the value of a field that names the address."""
        if self.reason.startswith("not "):
            return f"must name a host: it is {self.reason}"
        return f"must not name {self.reason}"


# credentials and instance metadata of clouds: no configuration allows these
_METADATA = tuple(
    ip_network(network)
    for network in (
        "169.254.0.0/16",  # AWS, Google, Azure, and most others; ECS and EKS credentials
        "100.100.100.200/32",  # Alibaba
        "168.63.129.16/32",  # Azure's wire server
        "192.0.0.192/32",  # Oracle
        "fd00:ec2::/32",  # AWS
        "fd20:ce::254/128",  # Google
        "fd00:42::42/128",  # Scaleway
    )
)

_REFUSED: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("an unspecified address", ("0.0.0.0/8", "::/128")),
    ("a loopback address", ("127.0.0.0/8", "::1/128")),
    ("a link-local address", ("169.254.0.0/16", "fe80::/10")),
    ("a private address", ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16")),
    ("a private address", ("fc00::/7", "fec0::/10")),
    ("a shared address of a carrier", ("100.64.0.0/10",)),
    ("a multicast address", ("224.0.0.0/4", "ff00::/8")),
    ("a metadata address", ("168.63.129.16/32",)),
    ("a documentation address", ("192.0.2.0/24", "198.51.100.0/24", "203.0.113.0/24")),
    ("a documentation address", ("2001:db8::/32", "3fff::/20")),
    ("a benchmarking address", ("198.18.0.0/15",)),
    ("a reserved address", ("192.0.0.0/24", "240.0.0.0/4", "2001::/23", "5f00::/16")),
    ("a discarded address", ("100::/64", "100:0:0:1::/64")),
    # a relay would unwrap these after this check
    ("a tunnelled address", ("192.88.99.0/24", "::/96", "::ffff:0:0:0/96", "2002::/16")),
    ("a translated address", ("64:ff9b:1::/48",)),
)
_REFUSED_NETWORKS = tuple(
    (reason, ip_network(network)) for reason, networks in _REFUSED for network in networks
)

_COMPATIBLE = IPv6Network("::/96")
_TRANSLATED = IPv6Network("64:ff9b::/96")
_STATELESS = IPv6Network("::ffff:0:0:0/96")
_GLOBAL_UNICAST = IPv6Network("2000::/3")

_LOOPBACKS = (IPv4Address("127.0.0.1"), IPv6Address("::1"))
# a connection to an unspecified address is made to the machine itself
_SAME: dict[Address, Address] = {IPv4Address(0): _LOOPBACKS[0], IPv6Address(0): _LOOPBACKS[1]}
_NUMBER = re.compile(r"0x[0-9a-f]*|[0-9]+")


@dataclass(frozen=True, slots=True)
class AddressPolicy:
    """Permitted addresses: the public internet and `allowed`, except `denied`.

    `allowed` is for receivers in the cluster and local runs; `denied` for cluster networks with
    public addresses, and for parts of allowed networks. Metadata addresses are always forbidden.
    """

    allowed: tuple[Network, ...] = ()
    denied: tuple[Network, ...] = ()

    def check_ip(self, ip: str | Address) -> None:
        """Raise AddressRefused where `ip` is forbidden or no address."""
        address = _parse(ip)
        inner = _unwrap(address)
        forms = [form for form in (address, inner) if form is not None]
        forms += [_SAME[form] for form in forms if form in _SAME]
        if any(_is_in(form, _METADATA) for form in forms):
            raise AddressRefused("a metadata address")
        # a mapped address, and a translated one where the cluster's network has NAT64, reach the
        # IPv4 address inside, which is checked in their place
        judged, is_allowed = address, _is_in(address, self.allowed)
        if isinstance(address, IPv6Address) and inner is not None:
            if address.ipv4_mapped is not None:
                judged, is_allowed = inner, _is_in(inner, self.allowed)
            elif address in _TRANSLATED and not is_allowed:
                judged = inner
        if not is_allowed:
            _check_public(judged)
        if any(_is_in(form, self.denied) for form in forms):
            raise AddressRefused("an address of the cluster")

    def permits(self, ip: str | Address) -> bool:
        """Return whether `ip` is permitted."""
        try:
            self.check_ip(ip)
        except AddressRefused:
            return False
        return True

    def check_url_literal(self, url: str) -> None:
        """Raise AddressRefused where the host of `url` is a forbidden address or a local name.

        Covers every form that resolvers accept as an address; ignores other names and the rest.
        """
        host, is_bracketed = _read_host(url)
        if is_bracketed:
            self.check_ip(host)
        elif host == "localhost" or host.endswith(".localhost"):
            if not any(self.permits(loopback) for loopback in _LOOPBACKS):
                raise AddressRefused("a loopback address")
        else:
            address = _read_ipv4(host)
            if address is not None:
                self.check_ip(address)


DECLARED = AddressPolicy(allowed=(IPv4Network("0.0.0.0/0"), IPv6Network("::/0")))
"""For URLs that an admin declares, such as a provider's base: all but metadata addresses."""


def _parse(ip: str | Address) -> Address:
    try:
        address = ip_address(str(ip).partition("%")[0])
    except ValueError:
        raise AddressRefused("not an address") from None
    return address


def _check_public(address: Address) -> None:
    for reason, network in _REFUSED_NETWORKS:
        if address in network:
            raise AddressRefused(reason)
    if isinstance(address, IPv6Address):
        if address not in _GLOBAL_UNICAST:
            raise AddressRefused("a reserved address")
    elif not address.is_global:
        raise AddressRefused("a private address")


def _is_in(address: Address, networks: tuple[Network, ...]) -> bool:
    return any(address in network for network in networks)


def _unwrap(address: Address) -> IPv4Address | None:
    """Return the IPv4 address inside an IPv6 one, by any of the known schemes."""
    if isinstance(address, IPv4Address):
        return None
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address.sixtofour is not None:
        return address.sixtofour
    if address.teredo is not None:
        return address.teredo[1]
    if address in _COMPATIBLE or address in _TRANSLATED or address in _STATELESS:
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return None


def _read_host(url: str) -> tuple[str, bool]:
    """Return the host as a resolver gets it (decoded, lower case), and whether it had brackets."""
    try:
        parts = urlsplit(url)
        host = parts.hostname
    except ValueError:
        raise AddressRefused("not a host") from None
    # parsers disagree on whether a backslash ends the host
    if not host or "\\" in url:
        raise AddressRefused("not a host")
    if parts.netloc.rpartition("@")[2].startswith("["):
        return host, True
    host = unicodedata.normalize("NFKC", unquote(host)).replace("\u3002", ".").lower()
    return host.removesuffix("."), False


def _read_ipv4(host: str) -> IPv4Address | None:
    """Return the address that a C library reads `host` as, None for a name (WHATWG URL §3.5).

    One to four numbers, each decimal, octal (`0…`) or hexadecimal (`0x…`), the last filling the
    remaining bytes. A host whose last part is a number is an address or invalid.
    """
    parts = host.split(".")
    if not _NUMBER.fullmatch(parts[-1]):
        return None
    if len(parts) > 4 or not all(_NUMBER.fullmatch(part) for part in parts):
        raise AddressRefused("not an address")
    try:
        *leading, last = (_read_number(part) for part in parts)
    except ValueError:
        raise AddressRefused("not an address") from None
    if any(number > 255 for number in leading) or last >= 256 ** (4 - len(leading)):
        raise AddressRefused("not an address")
    value = last
    for place, number in enumerate(leading):
        value += number << (8 * (3 - place))
    return IPv4Address(value)


def _read_number(part: str) -> int:
    if part.startswith("0x"):
        return int(part[2:] or "0", 16)
    return int(part, 8 if part.startswith("0") and len(part) > 1 else 10)
