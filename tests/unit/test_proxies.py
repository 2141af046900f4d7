"""Choice of the proxy for a URL, by the rules of Go's httpproxy."""

import pytest

from gateway_core.proxies import InvalidProxy, find_proxy, split_credentials

PROXY = "http://proxy.example:3128"


@pytest.mark.parametrize(
    ("url", "exceptions", "is_proxied"),
    [
        ("https://api.example.com/v1", "", True),
        ("https://localhost:8443", "", False),
        ("https://127.0.0.7", "", False),
        ("https://[::1]:8443", "", False),
        ("https://api.example.com", "*", False),
        ("https://10.1.2.3", "*", False),
        ("https://api.example.com", "example.com", False),
        ("https://API.Example.com.", "EXAMPLE.com", False),
        ("https://example.com", "example.com", False),
        ("https://notexample.com", "example.com", True),
        ("https://api.example.com", ".example.com", False),
        ("https://example.com", ".example.com", True),
        ("https://api.example.com", "*.example.com", False),
        ("https://example.com", "*.example.com", True),
        ("https://api.example.com", "*example.com", True),
        ("https://api.example.com", "other, example.com:443", False),
        ("https://api.example.com:8443", "example.com:443", True),
        ("https://gw-redis.models.svc:6379", ".svc,.cluster.local", False),
        ("https://10.1.2.3", "10.0.0.0/8", False),
        ("https://11.1.2.3", "10.0.0.0/8", True),
        ("https://10.1.2.3", "10.1.2.3", False),
        ("https://10.1.2.3", "10.1.2.3:443", False),
        ("https://10.1.2.3:444", "10.1.2.3:443", True),
        ("https://10.1.2.30", "10.1.2.3", True),
        ("https://10.1.2.3", "10.0.0.0/99,bad/x,:,", True),
        ("https://[fd00::5]", "fd00::/8", False),
        ("https://[fd00::5]", "fd00:0::5", False),
        ("https://[fd00::5]", "[fd00::5]", False),
        ("https://[fd00::5]", "[fd00::5]:443", False),
        ("https://[fd00::5]:444", "[fd00::5]:443", True),
        ("https://api.example.com", "10.0.0.0/8", True),
    ],
)
def test_exceptions_go_directly(url: str, exceptions: str, is_proxied: bool) -> None:
    for names in (("HTTPS_PROXY", "NO_PROXY"), ("https_proxy", "no_proxy")):
        environment = dict(zip(names, (PROXY, exceptions), strict=True))
        assert find_proxy(url, environment) == (PROXY if is_proxied else None)


def test_scheme_of_the_url_chooses_the_variable() -> None:
    environment = {"HTTPS_PROXY": "secure:1", "http_proxy": "plain:2", "https_proxy": "lower:3"}
    assert find_proxy("https://a.example", environment) == "http://secure:1"
    assert find_proxy("http://a.example", environment) == "http://plain:2"
    assert find_proxy("https://a.example", {"HTTP_PROXY": PROXY}) is None
    assert find_proxy("https://a.example", {"HTTPS_PROXY": "", "https_proxy": " "}) is None


@pytest.mark.parametrize(
    "proxy",
    [
        "socks5://u:secret@p:1",
        "http://u:secret@",
        "http://[u:secret",
        "http://u:1#secret@p:1",
        "http://u:1?secret@p:1",
    ],
)
def test_invalid_proxy_is_refused_without_its_password(proxy: str) -> None:
    with pytest.raises(InvalidProxy, match="HTTPS_PROXY ") as refusal:
        find_proxy("https://a.example", {"HTTPS_PROXY": proxy})
    assert "secret" not in str(refusal.value)
    assert find_proxy("http://a.example", {"HTTPS_PROXY": proxy}) is None


def test_credentials_leave_the_address() -> None:
    address, headers = split_credentials("http://ann:p%40ss@proxy:3128")
    assert address == "http://proxy:3128"
    assert headers == {"Proxy-Authorization": "Basic YW5uOnBAc3M="}
    assert split_credentials(PROXY) == (PROXY, {})
