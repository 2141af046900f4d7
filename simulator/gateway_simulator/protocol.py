"""uvicorn's HTTP protocol without its loss of bodies of requests with Upgrade."""

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol


class Protocol(HttpToolsProtocol):
    """Ignores Upgrade, as RFC 9110 §7.8 permits; uvicorn drops the body of such a request."""

    def data_received(self, data: bytes) -> None:
        """Parse received bytes; the parser stops behind a head with Upgrade."""
        self._unset_keepalive_if_required()
        try:
            while True:
                try:
                    return self.parser.feed_data(data)
                except httptools.HttpParserUpgrade as upgrade:
                    data = data[upgrade.args[0] :]
                self._parse_without_upgrade()
        except httptools.HttpParserError:
            self.send_400_response("Invalid HTTP request received.")

    def on_headers_complete(self) -> None:
        """Begin a request, unless its head is to be parsed again."""
        if not self.parser.should_upgrade():
            super().on_headers_complete()

    def on_message_complete(self) -> None:
        """End the request."""
        if not self.parser.should_upgrade():
            super().on_message_complete()

    def _parse_without_upgrade(self) -> None:
        method, version = self.parser.get_method(), self.parser.get_http_version().encode()
        if method == b"CONNECT":
            raise httptools.HttpParserError
        lines = [b"%b: %b\r\n" % header for header in self.headers if header[0] != b"upgrade"]
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        start = b"%b %b HTTP/%b\r\n" % (method, self.url, version)
        self.parser.feed_data(b"".join([start, *lines, b"\r\n"]))
