"""Mails to an SMTP server: what is sent, and that failures are bounded and told in words."""

import asyncio
import email
import smtplib
import socket
import ssl
import threading
import time
from email.message import EmailMessage

import pytest

from gateway_core.mail import MAX_AT_ONCE, MAX_WAITING, Mailer, MailFailed, MailServer

SENDER = "gateway@example.com"


class Server:
    """A server of few words on a port of its own, for one mail after another."""

    def __init__(self, *, refuses: str = "", is_silent: bool = False) -> None:
        self.refuses = refuses
        self.is_silent = is_silent
        self.mails: list[str] = []
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._socket.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            with connection, connection.makefile("rwb") as stream:
                if self.is_silent:
                    time.sleep(0.5)
                    continue
                self._talk(stream)

    def _talk(self, stream) -> None:
        def say(line: str) -> None:
            stream.write(line.encode() + b"\r\n")
            stream.flush()

        say("220 mail.example.com")
        while line := stream.readline().decode().strip():
            word = line.split()[0].upper()
            if word == self.refuses:
                say("550 no: secret-of-the-server")
            elif word == "EHLO":
                say("250-mail.example.com")
                say("250 AUTH PLAIN")
            elif word == "DATA":
                say("354 go on")
                text = ""
                while (part := stream.readline().decode()) != ".\r\n":
                    text += part
                self.mails.append(text)
                say("250 taken")
            elif word == "QUIT":
                say("221 bye")
                return
            else:
                say("235 ok" if word == "AUTH" else "250 ok")


@pytest.fixture
def serve():
    servers: list[Server] = []

    def begin(**given) -> Server:
        servers.append(Server(**given))
        return servers[-1]

    yield begin
    for server in servers:
        server.close()


def make_mailer(port, *, security="none", **given):
    server = MailServer("127.0.0.1", port, security, SENDER, **given)
    return Mailer(server, seconds=3.0)


async def test_mail_arrives_with_its_link_whole(serve):
    server = serve()
    link = "https://gateway.example.com/password#ann." + "A" * 43
    mailer = make_mailer(server.port, user="gateway", password="secret")
    await mailer.send("demo", "bea@example.com", "Invitation to Zürich", f"Grüße\n\n{link}\n")
    mail = email.message_from_string(server.mails[0], policy=email.policy.default)
    assert (mail["From"], mail["To"]) == (SENDER, "bea@example.com")
    assert mail["Subject"] == "Invitation to Zürich"
    assert link in mail.get_content()
    assert "secret" not in repr(MailServer("h", 1, "tls", SENDER, "u", "secret"))


@pytest.mark.parametrize(
    ("refuses", "text"),
    [
        ("AUTH", "refuses the gateway's user and password"),
        ("RCPT", "refuses the address"),
        ("MAIL", "refuses the mail"),
        ("DATA", "refuses the mail"),
    ],
)
async def test_refusal_of_the_server_is_told_without_its_words(serve, refuses, text):
    mailer = make_mailer(serve(refuses=refuses).port, user="gateway", password="secret")
    with pytest.raises(MailFailed, match=text) as error:
        await mailer.send("demo", "bea@example.com", "Hello", "text")
    assert "secret" not in str(error.value)


async def test_unreachable_server_is_told():
    with pytest.raises(MailFailed, match="cannot be reached"):
        await make_mailer(1).send("demo", "bea@example.com", "Hello", "text")


@pytest.mark.parametrize("to", ["bea@example.com\nBcc: x@example.com", "bea@exa\rmple.com"])
async def test_address_adds_no_header(to):
    sent: list[EmailMessage] = []
    server = MailServer("h", 25, "none", SENDER)
    mailer = Mailer(server, send=lambda _, mail: sent.append(mail))
    with pytest.raises(MailFailed, match="address"):
        await mailer.send("demo", to, "Hello", "text")
    assert sent == []


async def test_slow_server_holds_up_a_page_for_a_bounded_time_and_few_mails():
    held = threading.Event()
    server = MailServer("h", 25, "none", SENDER)
    mailer = Mailer(server, send=lambda *_: held.wait(100) and None, seconds=0.2)
    begin = time.monotonic()
    count = MAX_AT_ONCE + MAX_WAITING + 3
    results = await asyncio.gather(
        *(mailer.send("demo", "bea@example.com", "s", "t") for _ in range(count)),
        return_exceptions=True,
    )
    held.set()
    assert all(isinstance(result, MailFailed) for result in results)
    assert time.monotonic() - begin < 60
    texts = [str(result) for result in results]
    assert "Too many mails are being sent." in texts
    assert any("in time" in text for text in texts)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ssl.SSLCertVerificationError(), "certificate"),
        (smtplib.SMTPServerDisconnected("x"), "closed the connection"),
        (ConnectionRefusedError(), "cannot be reached"),
        (TimeoutError(), "in time"),
    ],
)
async def test_failures_are_told_in_words(error, text):
    def send(*_):
        raise error

    mailer = Mailer(MailServer("h", 25, "none", SENDER), send=send)
    with pytest.raises(MailFailed, match=text):
        await mailer.send("demo", "bea@example.com", "s", "t")
