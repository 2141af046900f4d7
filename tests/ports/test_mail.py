"""Mails to a real SMTP server, with TLS, STARTTLS and a password; and to hostile servers."""

import asyncio
import email
import email.policy
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import trustme
from aiosmtpd.smtp import SMTP, AuthResult, Envelope, LoginPassword, Session

from gateway_core.mail import Mailer, MailFailed, MailServer, Security

HOST = "127.0.0.1"
PASSWORD = "secret-of-the-gateway"
LINK = "https://gateway.example.com/password#ann." + "A" * 43
STRIPPED = "does not offer encryption by STARTTLS, so nothing was sent"
UNTRUSTED = "has no valid certificate"
PLAIN = "cannot be encrypted"
NO_SIGN_IN = "does not offer a sign-in that the gateway can use"


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(autouse=True)
def trust(authority: trustme.CA, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The authority is the one that the process trusts, as of a deployment's `SSL_CERT_FILE`."""
    bundle = tmp_path / "bundle.pem"
    authority.cert_pem.write_to_path(str(bundle))
    monkeypatch.setenv("SSL_CERT_FILE", str(bundle))


def make_context(authority: trustme.CA, name: str = HOST, **given: Any) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(name, **given).configure_cert(context)
    return context


class Letterbox:
    """Mails that a server was given, and passwords with the encryption that they came by."""

    def __init__(self) -> None:
        self.port = 0
        self.mails: list[tuple[Envelope, bool]] = []
        self.passwords: list[tuple[bytes, bool]] = []

    async def handle_DATA(self, _: SMTP, session: Session, envelope: Envelope) -> str:
        self.mails.append((envelope, session.ssl is not None))
        return "250 taken"

    def check(self, _: SMTP, session: Session, __: Envelope, ___: str, given: Any) -> AuthResult:
        assert isinstance(given, LoginPassword)
        self.passwords.append((given.password, session.ssl is not None))
        return AuthResult(success=given.password == PASSWORD.encode(), handled=False)


@asynccontextmanager
async def serve(
    security: Security, context: ssl.SSLContext | None, **given: Any
) -> AsyncIterator[Letterbox]:
    """aiosmtpd on a port of its own."""
    letterbox, loop = Letterbox(), asyncio.get_running_loop()

    def make() -> SMTP:
        tls = context if security == "starttls" else None
        return SMTP(
            letterbox,
            authenticator=letterbox.check,
            tls_context=tls,
            require_starttls=tls is not None,
            loop=loop,
            **given,
        )

    server = await loop.create_server(make, HOST, 0, ssl=context if security == "tls" else None)
    letterbox.port = server.sockets[0].getsockname()[1]
    try:
        yield letterbox
    finally:
        server.close()


async def send(port: int, security: Security, password: str = PASSWORD) -> None:
    server = MailServer(HOST, port, security, "gateway@example.com", "gateway", password)
    await Mailer(server, seconds=60.0).send("demo", "bea@example.com", "Grüße", f"Link:\n{LINK}\n")


@pytest.mark.parametrize("security", ["starttls", "tls"])
async def test_mail_and_password_arrive_encrypted(
    authority: trustme.CA, security: Security
) -> None:
    # aiosmtpd takes a connection that is encrypted from the first byte for a plain one
    given = {"auth_require_tls": security == "starttls"}
    async with serve(security, make_context(authority), **given) as letterbox:
        await send(letterbox.port, security)
    [(envelope, is_encrypted)] = letterbox.mails
    assert is_encrypted is (security == "starttls")
    assert letterbox.passwords == [(PASSWORD.encode(), is_encrypted)]
    assert envelope.rcpt_tos == ["bea@example.com"]
    content = envelope.content
    assert isinstance(content, bytes)
    mail = email.message_from_bytes(content, policy=email.policy.default)
    assert mail["Subject"] == "Grüße"
    body = mail.get_body()
    assert body is not None
    assert LINK in body.get_content()


@pytest.mark.parametrize("security", ["starttls", "tls"])
@pytest.mark.parametrize("fault", ["authority", "name", "expired"])
async def test_server_with_a_bad_certificate_gets_nothing(
    authority: trustme.CA, security: Security, fault: str
) -> None:
    context = {
        "authority": lambda: make_context(trustme.CA()),
        "name": lambda: make_context(authority, "mail.example.com"),
        "expired": lambda: make_context(authority, not_after=datetime(2020, 1, 1, tzinfo=UTC)),
    }[fault]()
    async with serve(security, context, auth_require_tls=False) as letterbox:
        with pytest.raises(MailFailed, match=UNTRUSTED):
            await send(letterbox.port, security)
    assert (letterbox.mails, letterbox.passwords) == ([], [])


async def test_refused_password_is_told(authority: trustme.CA) -> None:
    async with serve("starttls", make_context(authority)) as letterbox:
        with pytest.raises(MailFailed, match="refuses the gateway's user and password"):
            await send(letterbox.port, "starttls", "wrong")
        with pytest.raises(MailFailed, match="characters that cannot be sent"):
            await send(letterbox.port, "starttls", "geheimnisträger")
    assert letterbox.mails == []


async def test_server_without_a_sign_in_is_told(authority: trustme.CA) -> None:
    excluded = {"auth_exclude_mechanism": ("LOGIN", "PLAIN")}
    async with serve("starttls", make_context(authority), **excluded) as letterbox:
        with pytest.raises(MailFailed, match=NO_SIGN_IN):
            await send(letterbox.port, "starttls")
    assert letterbox.mails == []


async def test_server_that_has_lost_its_offer_of_encryption_gets_nothing() -> None:
    async with serve("none", None, auth_require_tls=False) as letterbox:
        with pytest.raises(MailFailed, match=STRIPPED):
            await send(letterbox.port, "starttls")
    assert (letterbox.mails, letterbox.passwords) == ([], [])


class Hostile:
    """A server that answers commands from a table, and keeps all bytes that it is given."""

    def __init__(self, answers: dict[str, str], greeting: str) -> None:
        self.answers = {"EHLO": "250-evil\r\n250-AUTH PLAIN LOGIN\r\n250 STARTTLS", **answers}
        self.greeting = greeting
        self.taken = b""
        self.port = 0

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(f"{self.greeting}\r\n".encode())
        while line := await reader.readline():
            self.taken += line
            words = line.decode("latin-1").split()
            answer = self.answers.get(words[0].upper() if words else "", "250 ok")
            if not answer:
                break
            writer.write(f"{answer}\r\n".encode())
            if answer.startswith("354"):
                self.taken += await reader.readuntil(b"\r\n.\r\n")
                writer.write(b"250 taken\r\n")
        writer.close()


@asynccontextmanager
async def attack(answers: dict[str, str], greeting: str = "220 evil") -> AsyncIterator[Hostile]:
    hostile = Hostile(answers, greeting)
    server = await asyncio.start_server(hostile.talk, HOST, 0)
    hostile.port = server.sockets[0].getsockname()[1]
    try:
        yield hostile
    finally:
        server.close()


HELLO = "250-evil\r\n250 AUTH PLAIN LOGIN CRAM-MD5"


@pytest.mark.parametrize(
    ("answers", "text"),
    [
        ({"EHLO": HELLO}, STRIPPED),
        ({"EHLO": "502 unknown"}, STRIPPED),
        ({"EHLO": "502 unknown", "HELO": "502 unknown"}, STRIPPED),
        ({"STARTTLS": "454 not now"}, STRIPPED),
        ({"STARTTLS": "250 go on as you are"}, STRIPPED),
        ({"STARTTLS": "235 you are signed in"}, STRIPPED),
        ({"STARTTLS": "220 ready\r\n250 AUTH PLAIN\r\n235 ok\r\n250 ok"}, PLAIN),
        ({"STARTTLS": ""}, "closed the connection"),
        ({"EHLO": ""}, "closed the connection"),
        ({"STARTTLS": "what?"}, STRIPPED),
    ],
)
async def test_hostile_server_gets_no_password_in_clear(answers: dict[str, str], text: str) -> None:
    async with attack(answers) as hostile:
        with pytest.raises(MailFailed, match=text):
            await send(hostile.port, "starttls")
    assert b"AUTH" not in hostile.taken
    assert b"MAIL" not in hostile.taken


async def test_encryption_from_the_first_byte_is_not_given_up() -> None:
    async with attack({}) as hostile:
        with pytest.raises(MailFailed, match=PLAIN):
            await send(hostile.port, "tls")
    assert b"EHLO" not in hostile.taken


@pytest.mark.parametrize(
    ("answers", "text"),
    [
        ({"EHLO": "250-evil\r\n250 AUTH XOAUTH2"}, NO_SIGN_IN),
        ({"AUTH": "334 not-base64"}, "not SMTP"),
        ({"AUTH": "454 later"}, "refuses the gateway's user and password"),
        ({"MAIL": "530 no: secret-of-the-server"}, "refuses the mail"),
        ({"RCPT": "550 no: secret-of-the-server"}, "refuses the address"),
        ({"DATA": ""}, "closed the connection; the mail may still arrive"),
    ],
)
async def test_odd_answers_are_told_in_words(answers: dict[str, str], text: str) -> None:
    async with attack({"EHLO": HELLO, "AUTH": "235 ok", **answers}) as hostile:
        with pytest.raises(MailFailed, match=text) as failure:
            await send(hostile.port, "none")
    assert "secret" not in str(failure.value)


async def test_server_that_refuses_the_connection_is_told() -> None:
    async with attack({}, greeting="554 go away") as hostile:
        with pytest.raises(MailFailed, match="refuses the mail"):
            await send(hostile.port, "starttls")


@pytest.mark.parametrize("end", ["", "500 what?"])
async def test_mail_that_was_taken_counts_as_sent(end: str) -> None:
    answers = {"EHLO": HELLO, "AUTH": "235 ok", "DATA": "354 go on", "QUIT": end}
    async with attack(answers) as hostile:
        await send(hostile.port, "none")
    assert b"https://gateway.example.com/password#" in hostile.taken
