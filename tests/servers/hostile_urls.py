"""120 URLs that lead where the gateway must not go, in every form an attacker would try.

Used for whatever the gateway fetches or posts to on another's word: callbacks, outputs, the base
of a provider. A literal names the address in the URL; a name is resolved by `LyingResolver`, which
says `answers`, another the second time where there are two.
"""

import asyncio
import socket
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from aiohttp.abc import AbstractResolver, ResolveResult


@dataclass(frozen=True, slots=True)
class HostileUrl:
    """One URL. `answers` are what its name resolves to, one tuple for each time it is asked."""

    url: str
    answers: tuple[tuple[str, ...], ...] = ()

    @property
    def is_literal(self) -> bool:
        """Whether the host is an address in some form, or a name of this machine's."""
        return not self.answers


def _read(hosts: str) -> list[str]:
    return hosts.split()


_LOOPBACK = _read("""
    127.0.0.1 127.0.0.1. 127.1 127.0.1 127.255.255.254 0 0.0.0.0 2130706433 0x7f000001 0x7F.1
    0x7f.0x0.0x0.0x1 017700000001 0177.0.0.1 0177.0.0x1 00000177.1 %31%32%37.0.0.1 127%2e0.0.1
    127\u30020\u30020\u30021 \uff11\uff12\uff17.0.0.1 \u2460\u2461\u2466.1
    127\uff0e0\uff0e0\uff0e1 localhost LOCALHOST localhost. a.localhost
    \uff4c\uff4f\uff43\uff41\uff4c\uff48\uff4f\uff53\uff54 [::1] [0:0:0:0:0:0:0:1] [::]
    [::ffff:127.0.0.1] [::ffff:7f00:1] [::127.0.0.1] [::ffff:0:127.0.0.1] [64:ff9b::127.0.0.1]
    [64:ff9b:1::7f00:1] [2002:7f00:1::]
""")
_METADATA = _read("""
    169.254.169.254 169.254.169.254. 169.254.170.2 169.254.170.23 2852039166 0xa9fea9fe
    0xA9.0xFE.0xA9.0xFE 0251.0376.0251.0376 169.254.43518 169.16689662 025177524776
    %31%36%39.254.169.254 \uff11\uff16\uff19.254.169.254 169\u3002254\u3002169\u3002254
    [::ffff:169.254.169.254] [::ffff:a9fe:a9fe] [::169.254.169.254] [::ffff:0:169.254.169.254]
    [64:ff9b::a9fe:a9fe] [64:ff9b:1::a9fe:a9fe] [2002:a9fe:a9fe::1]
    [2001:0:4136:e378:8000:63bf:5601:5601] [fd00:ec2::254] [fd00:ec2::23] [fd20:ce::254]
    [fd00:42::42] 100.100.100.200 168.63.129.16 192.0.0.192 [::ffff:168.63.129.16]
    [fe80::a9fe:a9fe]
""")
_INSIDE = _read("""
    10.0.0.1 10.255.255.255 172.16.0.1 172.31.255.254 192.168.0.1 0xc0a80001 3232235521
    012.0.0.1 192.168.257 100.64.0.1 100.127.255.255 169.254.1.1 198.18.0.1 192.0.2.1
    203.0.113.9 192.88.99.1 192.0.0.8 224.0.0.1 239.255.255.255 240.0.0.1 255.255.255.255
    [fc00::1] [fd12:3456::1] [fe80::1] [fe80::1%25eth0] [fec0::1] [ff02::1] [2001:db8::1]
    [3fff::1] [5f00::1] [100::1] [::ffff:10.0.0.1] [64:ff9b::10.0.0.1] [2002:a00:1::]
""")
_DECEIVING = (
    "http://example.com@127.0.0.1/",
    "http://example.com%40127.0.0.1:80@169.254.169.254/",
    "http://127.0.0.1:80\\@example.com/",
    "http://169.254.169.254#@example.com/",
    "http://169.254.169.254?@example.com/",
    "HTTP://169.254.169.254/latest/meta-data/",
    "https://169.254.169.254/latest/meta-data/",
)
_NAMED: tuple[tuple[tuple[str, ...], ...], ...] = (
    (("127.0.0.1",),),
    (("169.254.169.254",),),
    (("10.0.0.1",),),
    (("::1",),),
    (("::ffff:169.254.169.254",),),
    (("64:ff9b::a9fe:a9fe",),),
    (("fd00:ec2::254",),),
    (("169.254.169.254", "10.0.0.1", "127.0.0.1"),),
    (("100.100.100.200",), ("169.254.169.254",)),
    (("192.168.1.1",), ("127.0.0.1",)),
    (("169.254.170.2",), ("fd00:ec2::23",)),
    (("0.0.0.0",),),
)

CORPUS: tuple[HostileUrl, ...] = (
    *(HostileUrl(f"http://{host}/") for host in _LOOPBACK),
    *(HostileUrl(f"http://{host}/latest/meta-data/") for host in _METADATA),
    *(HostileUrl(f"http://{host}/") for host in _INSIDE),
    *(HostileUrl(url) for url in _DECEIVING),
    *(
        HostileUrl(f"http://inside-{number}.example/", answers)
        for number, answers in enumerate(_NAMED)
    ),
)


def tell_addresses(host: str, port: int, addresses: Iterable[str]) -> list[ResolveResult]:
    """What a resolver answers that holds `host` to be at `addresses`."""
    return [
        ResolveResult(
            hostname=host,
            host=address,
            port=port,
            family=socket.AF_INET6 if ":" in address else socket.AF_INET,
            proto=0,
            flags=socket.AI_NUMERICHOST,
        )
        for address in addresses
    ]


class LyingResolver(AbstractResolver):
    """Resolves the corpus's names as it says, addresses to themselves, and nothing else."""

    def __init__(self) -> None:
        self._answers = {
            hostile.url.split("/")[2]: list(hostile.answers)
            for hostile in CORPUS
            if hostile.answers
        }

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """What the name leads to this time; OSError for one that is not of the corpus."""
        answers = self._answers.get(host)
        if answers is not None:
            addresses = answers.pop(0) if len(answers) > 1 else answers[0]
        elif host.rstrip(".").lower().endswith("localhost"):
            addresses = ("127.0.0.1", "::1")
        else:
            # as a C library reads it: `0x7f.1` is an address to it
            found = await asyncio.get_running_loop().getaddrinfo(
                host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST
            )
            addresses = tuple(str(entry[4][0]) for entry in found)
        return tell_addresses(host, port, addresses)

    async def close(self) -> None:
        """Has nothing open."""


_attempts: list[list[str]] = []
_open_ports = set[int]()
_watching: list[bool] = []


def _hear(event: str, arguments: tuple[object, ...]) -> None:
    if event != "socket.connect" or not _attempts or not isinstance(arguments[1], tuple):
        return
    host, port = arguments[1][:2]
    if port in _open_ports:
        return
    _attempts[-1].append(str(host))
    raise ConnectionRefusedError("kept back by the test")


@contextmanager
def catch_connections(*ports: int) -> Iterator[list[str]]:
    """The addresses this process tries to connect to within the block, whoever does it.

    Nothing gets out: each attempt is refused, but to `ports`, which are the test's own and not
    listed. Python tells of every `connect` of asyncio's own loop beforehand (not of uvloop's).
    """
    if not _watching:
        sys.addaudithook(_hear)
        _watching.append(True)
    _attempts.append([])
    _open_ports.update(ports)
    try:
        yield _attempts[-1]
    finally:
        _attempts.pop()
        _open_ports.difference_update(ports)
