"""Redirect URIs that may be registered, and those that match (contract §10.5)."""

import pytest

from gateway_core.oauth.redirects import (
    RedirectRefused,
    check_redirect_uri,
    is_loopback,
    is_site,
    matches,
    name_host,
)


@pytest.mark.parametrize(
    "uri",
    [
        "https://app.example.com/cb",
        "https://app.example.com:8443/cb?x=1",
        "http://localhost/cb",
        "http://127.0.0.1:33418/callback",
        "http://[::1]:33418/",
        "cursor://anysphere.cursor-retrieval/oauth/callback",
        "com.example.app:/cb",
        "vscode://vscode.github-authentication/did-authenticate",
        "https://192.0.2.1/cb",
        f"https://{'a' * 63}.example/cb",
        "https://xn--80ak6aa92e.example/cb",
    ],
)
def test_https_loopback_and_private_schemes_are_allowed(uri):
    check_redirect_uri(uri)


UNSAFE = {
    "no absolute URI": ["", "/cb", "http:/127.0.0.1/cb", "http:127.0.0.1", "https:///cb"],
    "no authority": ["https:app.example.com/cb", "cursor:", "cursor://"],
    "script": [
        *("javascript:alert(1)", "JavaScript:alert(1)", "java\tscript:alert(1)"),
        *(" javascript:alert(1)", "data:text/html,x", "vbscript:x"),
    ],
    "local resource": [
        *("file:///etc/passwd", "blob:https://a.example/1", "about:blank", "smb://a.example/x"),
        *("view-source:https://a.example/", "filesystem:https://a.example/x"),
    ],
    "other protocol or program": [
        *("ftp://a.example/", "ldap://a.example/", "mailto:a@example.com", "tel:1"),
        *("intent://a/#Intent", "intent://a/cb", "android-app://a/cb", "ms-msdt:/id"),
        *("search-ms:query=a", "chrome-extension://a/cb"),
    ],
    "http beside loopback": [
        *("http://app.example.com/cb", "http://127.0.0.1.evil.example/cb"),
        *("http://localhost.evil.example/cb", "http://localhost@evil.example/"),
    ],
    "user or backslash": [
        *("https://user@app.example.com/cb", "https://app.example.com\\@evil.example/"),
    ],
    "fragment": ["https://app.example.com/cb#fragment", "https://app.example.com/cb#"],
    "reserved parameter": [
        *("https://app.example.com/cb?x=1&code=y", "https://app.example.com/cb?%69ss="),
        "com.example.app:/cb?state",
    ],
    "character": [
        *("https://\u0430pp.example.com/cb", "https://app.example.com/a b"),
        *('https://app.example.com/"><script>', "https://app.example.com/\r\nSet-Cookie: a=b"),
    ],
    "length": [
        *("https://app.example.com/" + "x" * 1024, f"https://{'a.' * 126}example/cb"),
        f"https://{'a' * 64}.example/cb",
    ],
    "host": [
        *("https://app.example.com:99999/cb", "https://app..example.com/cb"),
        *("https://[2001:db8::1]/cb", "https://-app.example.com/cb"),
        *("https://app-.example.com/cb", "https://app.example.com./cb"),
    ],
    "number as host": [
        *("https://127.1/cb", "https://2130706433/cb", "https://0x7f000001/cb"),
        *("https://app.example.0x1/cb", "https://256.1.1.1/cb", "https://01.1.1.1/cb"),
    ],
}


@pytest.mark.parametrize("uri", [uri for uris in UNSAFE.values() for uri in uris])
def test_unsafe_redirect_uris_are_refused(uri):
    with pytest.raises(RedirectRefused):
        check_redirect_uri(uri)


@pytest.mark.parametrize(
    ("registered", "given", "same"),
    [
        ("https://a.example/cb", "https://a.example/cb", True),
        ("https://a.example/cb", "https://a.example/cb/", False),
        ("https://a.example/cb", "https://a.example/CB", False),
        ("https://a.example/cb", "https://A.example/cb", False),
        ("https://a.example/cb", "https://a.example/cb?x=1", False),
        ("https://a.example/cb", "https://a.example/cb/../evil", False),
        ("https://a.example/cb", "https://a.example:444/cb", False),
        ("https://a.example/cb", "https://a.example.evil.example/cb", False),
        ("http://127.0.0.1/cb", "http://127.0.0.1:5000/cb", True),
        ("http://127.0.0.1:1/cb", "http://127.0.0.1:5000/cb", True),
        ("http://[::1]/cb", "http://[::1]:5000/cb", True),
        ("http://localhost/cb", "http://127.0.0.1/cb", False),
        ("http://127.0.0.1/cb", "https://127.0.0.1:5000/cb", False),
        ("http://127.0.0.1/cb", "http://127.0.0.1:5000/other", False),
        ("http://127.0.0.1/cb", "http://127.0.0.1:5000@evil.example/cb", False),
        ("http://127.0.0.1/cb", "http://127.0.0.1:99999/cb", False),
        ("cursor://a/cb", "cursor://b/cb", False),
    ],
)
def test_match_is_exact_but_for_ports_of_loopback(registered, given, same):
    assert matches(registered, given) is same


@pytest.mark.parametrize(
    ("uri", "host"),
    [
        ("https://a.example:8443/cb", "a.example:8443"),
        ("http://localhost:5000/cb", "localhost:5000"),
        ("http://[::1]:5000/cb", "[::1]:5000"),
        ("com.example.app:/cb", "com.example.app:"),
    ],
)
def test_host_is_named(uri, host):
    assert name_host(uri) == host


@pytest.mark.parametrize(
    ("uri", "local", "site"),
    [
        ("https://app.example.com/cb", False, True),
        ("https://localhost/cb", True, False),
        ("https://localhost:8443/cb", True, False),
        ("https://127.0.0.1/cb", True, False),
        ("https://127.9.9.9/cb", True, False),
        ("https://[::1]/cb", True, False),
        ("https://0.0.0.0/cb", True, False),
        ("https://app.localhost/cb", True, False),
        ("https://localhost.example.com/cb", False, True),
        ("http://127.0.0.1/cb", True, False),
        ("cursor://localhost/cb", False, False),
    ],
)
def test_machine_of_the_user_is_no_site(uri, local, site):
    assert (is_loopback(uri), is_site(uri)) == (local, site)
