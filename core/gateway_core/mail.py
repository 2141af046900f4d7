"""Mails to people, by the one SMTP server that the deployment names."""

import asyncio
import smtplib
import ssl
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from email.errors import MessageError
from email.message import EmailMessage
from email.utils import formatdate, make_msgid
from typing import Literal

import structlog

from gateway_core.fair_semaphore import AcquireTimeout, FairSemaphore

Security = Literal["starttls", "tls", "none"]

STEP_SECONDS = 5.0
"""For each step of the exchange with the server."""
MAIL_SECONDS = 15.0
"""For a whole mail: a page waits for it."""
MAX_AT_ONCE = 2
MAX_WAITING = 4
"""Mails of one account that wait while others are sent."""

_log = structlog.get_logger(__name__)


class MailFailed(Exception):
    """A mail that was not sent, or may not have been; the text says why, for people."""


@dataclass(frozen=True, slots=True)
class MailServer:
    """The SMTP server. `sender` is the address that mails come from."""

    host: str
    port: int
    security: Security
    sender: str
    user: str = ""
    password: str = field(default="", repr=False)


class Mailer:
    """Sends mails on threads, few at a time, which accounts share fairly."""

    def __init__(
        self,
        server: MailServer,
        *,
        send: Callable[[MailServer, EmailMessage], None] | None = None,
        seconds: float = MAIL_SECONDS,
    ) -> None:
        """`send` exchanges one mail with the server, and blocks."""
        self._server = server
        self._send = send or _send
        self._seconds = seconds
        self._slots = FairSemaphore(MAX_AT_ONCE, seconds=seconds, most_waiting=MAX_WAITING)

    async def send(self, account: str, to: str, subject: str, text: str) -> None:
        """Send a text for the account. MailFailed where the server has not taken it in time."""
        try:
            mail = _compose(self._server.sender, to, subject, text)
            await self._slots.wait(account)
        except AcquireTimeout:
            raise MailFailed("Too many mails are being sent.") from None
        except (ValueError, MessageError):
            raise MailFailed("The address cannot be used in a mail.") from None
        sending = asyncio.get_running_loop().run_in_executor(None, self._send, self._server, mail)
        # a thread cannot be stopped: it holds its slot until it ends by itself
        sending.add_done_callback(lambda _: self._slots.release(account))
        try:
            await asyncio.wait_for(asyncio.shield(sending), self._seconds)
        except (TimeoutError, OSError, ValueError, smtplib.SMTPException, MailFailed) as error:
            sending.add_done_callback(_ignore)
            failure = MailFailed(_describe(error))
            _log.warning("a mail was not sent", problem=str(failure), error=type(error).__name__)
            raise failure from error


def _compose(sender: str, to: str, subject: str, text: str) -> EmailMessage:
    mail = EmailMessage()
    mail["From"], mail["To"], mail["Subject"] = sender, to, subject
    mail["Date"], mail["Message-ID"] = formatdate(), make_msgid(domain=sender.rpartition("@")[2])
    mail["Auto-Submitted"] = "auto-generated"
    mail.set_content(text)
    return mail


def _send(server: MailServer, mail: EmailMessage) -> None:
    context = ssl.create_default_context()
    place, seconds = (server.host, server.port), STEP_SECONDS
    if server.security == "tls":
        client: smtplib.SMTP = smtplib.SMTP_SSL(*place, timeout=seconds, context=context)
    else:
        client = smtplib.SMTP(*place, timeout=seconds)
    try:
        if server.security == "starttls":
            _encrypt(client, context)
        if server.user:
            _sign_in(client, server)
        client.send_message(mail)
        # the mail is taken, whatever the server answers now
        with suppress(OSError, smtplib.SMTPException):
            client.quit()
    finally:
        client.close()


def _encrypt(client: smtplib.SMTP, context: ssl.SSLContext) -> None:
    try:
        client.starttls(context=context)
    except (smtplib.SMTPNotSupportedError, smtplib.SMTPResponseException) as error:
        # somebody in between may have taken the offer out of the server's answer
        raise MailFailed(
            "The mail server does not offer encryption by STARTTLS, so nothing was sent to it."
        ) from error


def _sign_in(client: smtplib.SMTP, server: MailServer) -> None:
    try:
        client.login(server.user, server.password)
    except UnicodeEncodeError as error:
        raise MailFailed(
            "The user or password for the mail server has characters that cannot be sent."
        ) from error
    except smtplib.SMTPException as error:
        # of no class of its own where the server offers other ways alone
        if type(error) in (smtplib.SMTPException, smtplib.SMTPNotSupportedError):
            raise MailFailed(
                "The mail server does not offer a sign-in that the gateway can use."
            ) from error
        raise


def _ignore(sending: asyncio.Future[None]) -> None:
    if not sending.cancelled():
        sending.exception()


def _describe(error: Exception) -> str:
    """Return the failure in words: what a server says may have names and addresses of others."""
    match error:
        case MailFailed():
            return str(error)
        case smtplib.SMTPAuthenticationError():
            return "The mail server refuses the gateway's user and password."
        case smtplib.SMTPRecipientsRefused():
            return "The mail server refuses the address."
        case smtplib.SMTPNotSupportedError():
            return "The mail server does not offer what the mail needs."
        case ssl.SSLCertVerificationError():
            return "The mail server has no valid certificate."
        case ssl.SSLError():
            return "The connection to the mail server cannot be encrypted."
        case TimeoutError():
            return "The mail server did not answer in time; the mail may still arrive."
        case smtplib.SMTPServerDisconnected():
            return "The mail server closed the connection; the mail may still arrive."
        case smtplib.SMTPException():
            return "The mail server refuses the mail."
        case ValueError():
            return "The mail server gave an answer that is not SMTP."
        case _:
            return "The mail server cannot be reached."
