"""Requests that proxies and servers may frame differently, with the verdict of RFC 9112.

Each case is followed by `NEXT` on its connection: it is served exactly if the case before it ended
where RFC 9112 has its end, and the connection stays.
"""

from dataclasses import dataclass

NEXT = b"GET /next HTTP/1.1\r\nHost: x\r\n\r\n"
_NEXT = ("GET", "/next", b"")
_LAST_CHUNK = b"0\r\n\r\n"
_CHUNKED = b"Transfer-Encoding: chunked\r\n"
_SMUGGLED = b"DELETE /smuggled HTTP/1.1\r\nHost: x\r\nX: "
"""Bytes that must never be read as a request."""

Request = tuple[str, str, bytes]
"""Method, path and body."""


@dataclass(frozen=True, slots=True)
class Case:
    """Bytes of a connection, the requests in them and how the connection goes on."""

    name: str
    data: bytes
    requests: tuple[Request, ...]
    refused: int = 0
    """Status of the response that ends the connection; 0 for none. Behind `requests` it is sent
    only if their responses were complete."""
    closes: bool = False
    """True if the connection ends after the responses."""


def _post(name: str, fields: bytes, body: bytes, received: bytes | None = None) -> Case:
    """A POST that is served with the body `received`."""
    data = b"POST /x HTTP/1.1\r\nHost: x\r\n" + fields + b"\r\n" + body
    served = ("POST", "/x", body if received is None else received)
    return Case(name, data + NEXT, (served, _NEXT))


def _bad(name: str, data: bytes, refused: int = 400, before: tuple[Request, ...] = ()) -> Case:
    return Case(name, data + NEXT, before, refused, closes=True)


def _bad_head(name: str, fields: bytes, refused: int = 400) -> Case:
    """A POST whose head is refused, with a body that is a request if it has no length."""
    data = b"POST /x HTTP/1.1\r\nHost: x\r\n" + fields + b"\r\n" + _LAST_CHUNK
    return _bad(name, data, refused)


def _bad_chunks(name: str, body: bytes) -> Case:
    """A POST whose body has no certain end."""
    data = b"POST /x HTTP/1.1\r\nHost: x\r\n" + _CHUNKED + b"\r\n" + body
    return _bad(name, data + _SMUGGLED)


def _get(name: str, start: bytes, path: str = "/x", fields: bytes = b"Host: x\r\n") -> Case:
    method = start.lstrip().partition(b" ")[0].decode()
    return Case(name, start + b"\r\n" + fields + b"\r\n" + NEXT, ((method, path, b""), _NEXT))


def _bad_get(name: str, start: bytes, refused: int = 400, fields: bytes = b"Host: x\r\n") -> Case:
    return _bad(name, start + b"\r\n" + fields + b"\r\n", refused)


def _upgrades() -> list[Case]:
    """RFC 9110, 7.8: a server may ignore Upgrade, and the message keeps its body."""
    body = _SMUGGLED + b"y\r\n\r\n" + NEXT
    length = b"Content-Length: %d\r\n" % len(body)
    # the piece behind the one with the head begins within the line ends, or in the request
    padded = b"\r\n" * 9000 + body
    chunks = _CHUNKED, b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
    fields = {
        "h2c": b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AA\r\n",
        "websocket": b"Connection: upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n",
        "TLS": b"upgrade: TLS/1.0, HTTP/2.0\r\nconnection: keep-alive, upgrade\r\n",
        "repeated": b"Upgrade: h2c\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n",
        "empty": b"Upgrade:\r\nConnection: Upgrade\r\n",
        "without Connection": b"Upgrade: h2c\r\n",
        "without Upgrade": b"Connection: Upgrade\r\n",
    }
    cases = []
    for name, upgrade in fields.items():
        cases += [
            _post(f"upgrade {name}, length", upgrade + length, body),
            _post(f"upgrade {name}, chunked", upgrade + chunks[0], chunks[1], body),
            _get(f"upgrade {name}, no body", b"GET /x HTTP/1.1", fields=b"Host: x\r\n" + upgrade),
        ]
    upgrade = fields["h2c"]
    for method in ("GET", "HEAD", "DELETE", "PUT", "PATCH", "OPTIONS"):
        for framing, sent in ((length, body), chunks):
            head = b"%b /x HTTP/1.1\r\nHost: x\r\n" % method.encode() + upgrade + framing + b"\r\n"
            served = ((method, "/x", body), _NEXT)
            cases.append(
                Case(f"upgrade {method} {framing[:8].decode()}", head + sent + NEXT, served)
            )
    half = b"\r\n" * 9000 + _SMUGGLED
    long = b"Content-Length: %d\r\n" % len(padded)
    chunked = b"%x\r\n%b\r\n0\r\n\r\n" % (len(padded), padded)
    twice = b"POST /x HTTP/1.1\r\nHost: x\r\n" + upgrade + b"Content-Length: 2\r\n\r\nab"
    last = b"GET /x HTTP/1.1\r\nHost: x\r\nConnection: close, Upgrade\r\nUpgrade: h2c\r\n\r\n"
    old = b"POST /x HTTP/1.0\r\n" + upgrade + length + b"\r\n" + body
    return [
        *cases,
        _post("upgrade with a body beyond one piece", upgrade + long, padded),
        _post(
            "upgrade with half a request in a body",
            upgrade + b"Content-Length: %d\r\n" % len(half),
            half,
        ),
        _post("upgrade with chunks beyond one piece", upgrade + _CHUNKED, chunked, padded),
        Case("upgrades in a row", twice * 3 + NEXT, (("POST", "/x", b"ab"),) * 3 + (_NEXT,)),
        Case("upgrade and close", last + NEXT, (("GET", "/x", b""),), closes=True),
        Case("upgrade in HTTP/1.0", old + NEXT, (("POST", "/x", body),), closes=True),
        _bad_head("upgrade with two lengths", upgrade + length + length),
        _bad_head("upgrade with length and chunked", upgrade + length + _CHUNKED),
        _bad_head(
            "upgrade with a tab behind its coding", upgrade + b"Transfer-Encoding: chunked\t\r\n"
        ),
        _bad_head("upgrade with another coding", upgrade + b"Transfer-Encoding: x\r\n"),
    ]


def _lengths() -> list[Case]:
    fields = {
        "equal": b"Content-Length: 5\r\nContent-Length: 5\r\n",
        "unequal": b"Content-Length: 5\r\nContent-Length: 6\r\n",
        "listed": b"Content-Length: 5, 5\r\n",
        "plus": b"Content-Length: +5\r\n",
        "minus": b"Content-Length: -5\r\n",
        "space within": b"Content-Length: 5 5\r\n",
        "hexadecimal": b"Content-Length: 0x5\r\n",
        "underscore": b"Content-Length: 1_0\r\n",
        "fraction": b"Content-Length: 5.0\r\n",
        "empty": b"Content-Length:\r\n",
        "beyond 64 bits": b"Content-Length: 18446744073709551621\r\n",
        "vertical tab": b"Content-Length: \x0b5\r\n",
        "form feed behind": b"Content-Length: 5\x0c\r\n",
        "NUL behind": b"Content-Length: 5\0\r\n",
        "folded": b"Content-Length:\r\n 5\r\n",
        "with chunked": b"Content-Length: 5\r\n" + _CHUNKED,
        "behind chunked": _CHUNKED + b"Content-Length: 5\r\n",
        "0 with chunked": b"Content-Length: 0\r\n" + _CHUNKED,
        "with identity": b"Content-Length: 5\r\nTransfer-Encoding: identity\r\n",
    }
    body = b"hello"
    return [
        *[_bad_head(f"length {name}", value) for name, value in fields.items()],
        _post("length with blanks", b"Content-Length: \t5 \t \r\n", body),
        _post("length with zeros", b"Content-Length: 0000000000000000000000005\r\n", body),
        _post("no length", b"", b""),
        _post("length in Content_Length", b"Content_Length: 5\r\n", b""),
        _post("length of a request", b"Content-Length: %d\r\n" % len(NEXT), NEXT),
        Case(
            "length of a GET",
            b"GET /x HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello" + NEXT,
            (("GET", "/x", b"hello"), _NEXT),
        ),
    ]


def _codings() -> list[Case]:
    refused = {
        "xchunked": 400,
        "chunked, identity": 400,
        "identity, chunked": 501,
        "gzip, chunked": 501,
        "chunked, gzip": 400,
        "chunked, chunked": 400,
        "identity": 400,
        '"chunked"': 400,
        "chunked;q=1": 400,
        "chunked,": 400,
        ",chunked": 501,
        "": 400,
        "chun ked": 400,
        "\x0bchunked": 400,
        "chunked\x0b": 400,
        "chunked\x0c": 400,
        "chunked\0": 400,
        "\r\n chunked": 400,
        "chunked\r\n ": 400,
        "chunked\xa0": 400,
        "chunked \t": 400,
    }
    lines = {
        "twice": (_CHUNKED * 2, 400),
        "then identity": (_CHUNKED + b"Transfer-Encoding: identity\r\n", 400),
        "behind identity": (b"Transfer-Encoding: identity\r\n" + _CHUNKED, 400),
        "behind gzip": (b"Transfer-Encoding: gzip\r\n" + _CHUNKED, 400),
        "space before colon": (b"Transfer-Encoding : chunked\r\n", 400),
        "tab before colon": (b"Transfer-Encoding\t: chunked\r\n", 400),
        "space before name": (b" Transfer-Encoding: chunked\r\n", 400),
        "NUL in name": (b"Transfer-Encoding\0: chunked\r\n", 400),
    }
    chunks = b"5\r\nhello\r\n" + _LAST_CHUNK
    early = b"POST /early HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\t\r\n\r\n"
    old = b"POST /x HTTP/1.0\r\nHost: x\r\nConnection: keep-alive\r\n"
    return [
        *[
            _bad_head(
                f"coding {coding!a}",
                b"Transfer-Encoding: %b\r\n" % coding.encode("latin-1"),
                status,
            )
            for coding, status in refused.items()
        ],
        *[_bad_head(f"coding {name}", value, status) for name, (value, status) in lines.items()],
        _bad("coding with a tab behind it, early response", early + chunks),
        _bad("coding in HTTP/1.0", old + _CHUNKED + b"\r\n" + chunks),
        _post("coding in capitals", b"TRANSFER-ENCODING: CHUNKED\r\n", chunks, b"hello"),
        _post("coding with blanks", b"Transfer-Encoding:\t chunked  \r\n", chunks, b"hello"),
        _post("coding in Transfer_Encoding", b"Transfer_Encoding: chunked\r\n", b""),
    ]


def _chunks() -> list[Case]:
    refused = {
        "extension with bare LF": b"5;a\nhello\r\n",
        "extension with bare CR": b"5;a\rb\r\nhello\r\n",
        "extension with NUL": b"5;a\0\r\nhello\r\n",
        "extension with CRLF in quotes": b'5;a="b\r\nc"\r\nhello\r\n',
        "size with bare LF": b"5\nhello\r\n",
        "size with bare CR": b"5\rhello\r\n",
        "size negative": b"-5\r\nhello\r\n",
        "size with plus": b"+5\r\nhello\r\n",
        "size 0x": b"0x5\r\nhello\r\n",
        "size with underscore": b"0_5\r\nhello\r\n",
        "size empty": b"\r\nhello\r\n",
        "size behind space": b" 5\r\nhello\r\n",
        "size beyond 64 bits": b"10000000000000005\r\nhello\r\n",
        "size with comma": b"5,5\r\nhello\r\n",
        "data with bare LF": b"5\r\nhello\n",
        "data with bare CR": b"5\r\nhello\r0",
        "data without an end": b"5\r\nhello",
        "data longer than its size": b"5\r\nhelloXX\r\n",
        "last chunk with bare LF": b"5\r\nhello\r\n0\n\r\n",
        "end with bare LF": b"5\r\nhello\r\n0\r\n\n",
        "trailer Content-Length": b"5\r\nhello\r\n0\r\nContent-Length: 40\r\n\r\n",
        "trailer Transfer-Encoding": b"5\r\nhello\r\n0\r\nTransfer-Encoding: chunked\r\n\r\n",
        "trailer Connection": b"5\r\nhello\r\n0\r\nConnection: close\r\n\r\n",
        "trailer that is a request": b"0\r\n" + NEXT,
        "trailer with NUL": b"0\r\nA\0: b\r\n\r\n",
        "trailer with bare LF": b"0\r\nA: b\n\r\n",
    }
    served = {
        "one": b"5\r\nhello\r\n0\r\n\r\n",
        "several": b"1\r\nh\r\n4\r\nello\r\n0\r\n\r\n",
        "extension": b"5;a=b;c\r\nhello\r\n0;d\r\n\r\n",
        "extension in quotes": b'5;a="b;c"\r\nhello\r\n0\r\n\r\n',
        "extension of 20 KiB": b"5;a=%b\r\nhello\r\n0\r\n\r\n" % (b"b" * 20480),
        "size with zeros": b"0000000000000000000005\r\nhello\r\n000\r\n\r\n",
        "trailer": b"5\r\nhello\r\n0\r\nA: b\r\nHost: y\r\nUpgrade: h2c\r\n\r\n",
        "body that is a request": b"%x\r\n%b\r\n0\r\n\r\n" % (len(NEXT), NEXT),
    }
    return [
        *[_bad_chunks(f"chunk {name}", body) for name, body in refused.items()],
        *[
            _post(f"chunk {name}", _CHUNKED, body, NEXT if "a request" in name else b"hello")
            for name, body in served.items()
        ],
        Case(
            "chunk extension of 60 KiB",
            b"POST /x HTTP/1.1\r\nHost: x\r\n" + _CHUNKED + b"\r\n5;a=" + b"b" * 61440,
            (),
            refused=431,
            closes=True,
        ),
    ]


def _lines() -> list[Case]:
    heads = {
        "bare LF behind the request line": b"GET /x HTTP/1.1\nHost: x\r\n\r\n",
        "bare LF behind a header": b"GET /x HTTP/1.1\r\nHost: x\nA: b\r\n\r\n",
        "bare LF at the end": b"GET /x HTTP/1.1\r\nHost: x\r\n\n",
        "bare LF everywhere": b"GET /x HTTP/1.1\nHost: x\n\n",
        "bare CR behind the request line": b"GET /x HTTP/1.1\rHost: x\r\n\r\n",
        "bare CR in a value": b"GET /x HTTP/1.1\r\nHost: x\r\nA: b\rC: d\r\n\r\n",
        "bare CR at the end": b"GET /x HTTP/1.1\r\nHost: x\r\n\rX",
        "two CR": b"GET /x HTTP/1.1\r\nHost: x\r\r\n\r\n",
        "fold": b"GET /x HTTP/1.1\r\nHost: x\r\nA: b\r\n c\r\n\r\n",
        "fold with a tab": b"GET /x HTTP/1.1\r\nHost: x\r\nA: b\r\n\tc\r\n\r\n",
        "fold of the first header": b"GET /x HTTP/1.1\r\n A: b\r\nHost: x\r\n\r\n",
        "fold of nothing": b"GET /x HTTP/1.1\r\nHost: x\r\n \r\n\r\n",
        "space before colon": b"GET /x HTTP/1.1\r\nHost: x\r\nA : b\r\n\r\n",
        "tab before colon": b"GET /x HTTP/1.1\r\nHost: x\r\nA\t: b\r\n\r\n",
        "no name": b"GET /x HTTP/1.1\r\nHost: x\r\n: b\r\n\r\n",
        "no colon": b"GET /x HTTP/1.1\r\nHost: x\r\nA\r\n\r\n",
        "NUL in a name": b"GET /x HTTP/1.1\r\nHost: x\r\nA\0: b\r\n\r\n",
        "NUL in a value": b"GET /x HTTP/1.1\r\nHost: x\r\nA: b\0c\r\n\r\n",
        "control character in a value": b"GET /x HTTP/1.1\r\nHost: x\r\nA: b\x01\r\n\r\n",
        "DEL in a value": b"GET /x HTTP/1.1\r\nHost: x\r\nA: b\x7f\r\n\r\n",
        "parentheses in a name": b"GET /x HTTP/1.1\r\nHost: x\r\nA(b): c\r\n\r\n",
        "latin letter in a name": b"GET /x HTTP/1.1\r\nHost: x\r\nA\xe9: b\r\n\r\n",
    }
    return [
        *[_bad(f"line {name}", data) for name, data in heads.items()],
        _get("line empty before the request", b"\r\n\r\nGET /x HTTP/1.1"),
        _post("line empty behind a body", b"Content-Length: 5\r\n", b"hello\r\n", b"hello"),
        _get("line with latin letters", b"GET /x HTTP/1.1", fields=b"Host: x\r\nA: \xe9\xff\r\n"),
    ]


def _starts() -> list[Case]:
    bad = {
        "lower-case protocol": b"GET /x http/1.1",
        "space behind the version": b"GET /x HTTP/1.1 ",
        "HTTP/1.2": b"GET /x HTTP/1.2",
        "HTTP/1.10": b"GET /x HTTP/1.10",
        "HTTP/3.0": b"GET /x HTTP/3.0",
        "no target": b"GET HTTP/1.1",
        "lower-case method": b"get /x HTTP/1.1",
        "mixed-case method": b"Get /x HTTP/1.1",
        "unknown method": b"SMUGGLE /x HTTP/1.1",
        "space before the method": b" GET /x HTTP/1.1",
        "tab behind the method": b"GET\t/x HTTP/1.1",
        "authority target": b"GET x:80 HTTP/1.1",
        "relative target": b"GET x HTTP/1.1",
        "asterisk target": b"GET * HTTP/1.1",
        "asterisk and more": b"OPTIONS *x HTTP/1.1",
        "scheme of another protocol": b"GET ftp://x/x HTTP/1.1",
        "user in the target": b"GET http://user@x/x HTTP/1.1",
        "target without a host": b"GET http:///x HTTP/1.1",
        "tab in the target": b"GET /x\ty HTTP/1.1",
        "control character in the target": b"GET /x\x01 HTTP/1.1",
        "latin letter in the target": b"GET /x\xe9 HTTP/1.1",
        "NUL in the target": b"GET /x\0 HTTP/1.1",
        "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    }
    hosts = {
        "missing": b"A: b\r\n",
        "twice": b"Host: x\r\nHost: y\r\n",
        "twice the same": b"Host: x\r\nHost: x\r\n",
        "with a path": b"Host: x/y\r\n",
        "with a user": b"Host: user@x\r\n",
        "with a space": b"Host: x y\r\n",
        "with a query": b"Host: x?y\r\n",
        "listed": b"Host: x, y\r\n",
        "latin": b"Host: \xe9\r\n",
    }
    tunnel = b"CONNECT x:80 HTTP/1.1\r\nHost: x\r\n"
    return [
        *[_bad_get(f"start {name}", start) for name, start in bad.items()],
        _bad_get("start HTTP/0.9", b"GET /x HTTP/0.9", 505),
        _bad_get("start HTTP/0.9 without a version", b"GET /x", 505),
        _bad_get("start HTTP/2.0", b"GET /x HTTP/2.0", 505),
        _bad("start HTTP/2 preface", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0"),
        _bad("start CONNECT", tunnel + b"\r\n" + _SMUGGLED, 501),
        _bad("start CONNECT with a length", tunnel + b"Content-Length: 5\r\n\r\nhello", 501),
        _bad(
            "start CONNECT with Upgrade",
            tunnel + b"Connection: Upgrade\r\nUpgrade: h2c\r\n\r\n",
            501,
        ),
        *[_bad_get(f"host {name}", b"GET /x HTTP/1.1", fields=f) for name, f in hosts.items()],
        _get("host empty", b"GET /x HTTP/1.1", fields=b"Host:\r\n"),
        _get("host with a port", b"GET /x HTTP/1.1", fields=b"Host: [::1]:8080\r\n"),
        _get("absolute target", b"GET http://y/x?a=b HTTP/1.1"),
        _get("absolute target without a path", b"GET HTTP://y HTTP/1.1", "/"),
        _get("absolute target with an address", b"GET http://[::1]:80/x HTTP/1.1"),
        _get("asterisk of OPTIONS", b"OPTIONS * HTTP/1.1", "*"),
        _get("target with two slashes", b"GET //x/y HTTP/1.1", "//x/y"),
    ]


def _connections() -> list[Case]:
    """Pipelining, and messages behind the last one of a connection."""
    get, served = b"GET /x HTTP/1.1\r\nHost: x\r\n\r\n", ("GET", "/x", b"")
    last = b"GET /x HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    old = b"GET /x HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"
    old_post = b"POST /x HTTP/1.0\r\nContent-Length: 5\r\n\r\nhello"
    chunked = b"POST /x HTTP/1.1\r\nHost: x\r\n" + _CHUNKED + b"\r\n"
    return [
        Case("pipelined", get * 3 + NEXT, (served,) * 3 + (_NEXT,)),
        Case("behind Connection: close", last + NEXT, (served,), closes=True),
        Case("behind HTTP/1.0", old + NEXT, (served,), closes=True),
        Case(
            "behind a body of HTTP/1.0", old_post + NEXT, (("POST", "/x", b"hello"),), closes=True
        ),
        _bad("pipelined and invalid", get + b"x\r\n\r\n", before=(served,)),
        _bad("pipelined and CONNECT", get + b"CONNECT x:1 HTTP/1.1\r\n\r\n", 501, (served,)),
        _bad("pipelined and invalid chunks", get + chunked + b"5\r\nhelloXX", before=(served,)),
        Case(
            "early response",
            b"POST /early HTTP/1.1\r\nHost: x\r\nContent-Length: 31\r\n\r\n" + NEXT[:31] + NEXT,
            (("POST", "/early", b""), _NEXT),
        ),
    ]


CASES = [
    *_upgrades(),
    *_lengths(),
    *_codings(),
    *_chunks(),
    *_lines(),
    *_starts(),
    *_connections(),
]
