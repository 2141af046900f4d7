"""Redaction of a provider's texts for clients (contract §1.3).

Removes addresses, hosts, credentials, ids and mail addresses, and keeps what is wrong with the
input. A text on the gateway's own account at the provider is replaced.
"""

import re
import unicodedata
from collections.abc import Iterable
from typing import Any

from gateway_core.providers.secret_forms import SecretFinder

MAX_MESSAGE = 500
_MAX_READ = 4096
_REMOVED = "[removed]"

_ADDRESS = re.compile(r"\b[a-z][a-z0-9+.-]{0,20}:(?://|\\/\\/)\S+|\bwww\.\S+", re.IGNORECASE)
_MAIL = re.compile(r"[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63}){0,8}")
_NUMBERED_HOST = re.compile(
    r"\b\d{1,3}(?:\.\d{1,3}){3}(?::\d+)?\b|\[[0-9a-f:.]{2,45}\](?::\d+)?"
    r"|(?<![\w:])(?:[0-9a-f]{0,4}:){2,7}[0-9a-f]{0,4}(?![\w:])|\blocalhost(?::\d+)?\b",
    re.IGNORECASE,
)
_BEARER = re.compile(r"\b(?:bearer|basic)\s+\S+", re.IGNORECASE)
_LABELLED = re.compile(
    r"\b(?:(?:api[_ -]?key|key|token|secret|password|authorization|project|account)(?:[_ -]?id)?"
    r"[\"']?\s*[:=]\s*(?=\S*\d)\S{4,}|org(?:anization)?(?:[_ -]?id)?[\"']?\s*[:=]\s*\S+)",
    re.IGNORECASE,
)
_PREFIXED = re.compile(
    r"\b(?:sk|pk|rk|ak|key|api|tok|token|org|proj|acct|usr|user|cus|req|job|task|gen|run|sess)"
    r"[-_](?=[\w*.-]*(?:\d|[A-Z]|\*|…))[\w*….-]{3,}|\borg[-_]\w[\w.-]{2,}"
)
_PROJECT = re.compile(
    r"\bprojects/[^\s'\"`]+|\bproject(?:s|_number)?(?:\s+(?:id|name|number))?[\s:=#'\"`]+"
    r"(?=[\w.:-]*\d)[\w.:-]{4,}",
    re.IGNORECASE,
)
_LONG = re.compile(r"(?<![\w/+=*.-])[\w/+=*.-]{20,}")
_KEY = re.compile(
    r"\b(?:(?:sk|mk|pk|rk|csk)[-_]|whsec_|gw(?:at|rt|cs)_|gh[a-z]_|github_pat_|glpat-|xox[a-z]-"
    r"|AIza|GOCSPX-|(?:A3T|AGPA|AIDA|AIPA|AKIA|ANPA|ANVA|AROA|ASIA)(?=[A-Z\d])|ABSK|eyJ"
    r"|gsk_|nvapi-|pplx-|xai-|tgp_v\d_|ya29\.)[\w.*…+/=-]{4,}"
    r"|\b(?:fw_|hf_|jina_|r8_|AQ\.)[\w.-]{8,}|\b1//0[\w-]{8,}|\b(?:org|proj|acct)[-_]\w{8,}"
    r"|\barn:aws[\w-]*:\S+"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----(?:(?!-----END).)*",
    re.DOTALL,
)
_RUN = re.compile(r"[A-Z]?[a-z]+|[A-Z]+|\d+")
_SCHEME = re.compile(r"\b(?:bearer|basic)\s+[^\s\"\\]{4,}", re.IGNORECASE)
_NAMED = re.compile(
    r"((?:api[_ -]?key|secret|token|passw(?:or)?d|authorization)[\\\"']*\s*[:=]\s*[\\\"']*)"
    r"[^\s\"'\\,;}\]]{4,}",
    re.IGNORECASE,
)
_PATTERNS = (_ADDRESS, _MAIL, _BEARER, _LABELLED, _KEY, _PREFIXED, _PROJECT, _NUMBERED_HOST)

_ACCOUNT = re.compile(
    r"\b(?:access tokens?|api[ _-]?keys?|billing|credits?"
    r"|insufficient (?:account )?(?:balance|funds)|invoices?|keys? (?:beginning|ending|starting)"
    r"|organi[sz]ations?|payments?|prepaid|quotas?"
    r"|recharge|spend(?:ing)? (?:cap|limit)s?|subscriptions?|top(?:ping)?[ -]up|usage limits?"
    r"|(?:your|this|the) account|account (?:balance|does|has|is|must|was)|your (?:current )?plan"
    r"|(?:your|remaining) balance|(?:daily|monthly|weekly) (?:limit|usage)"
    r"|(?:free|paid|usage) (?:tier|trial)|(?:consumer|project_number)\b.{0,40}\bsuspended"
    r"|api has not been used|(?:your|this) (?:project|team|tenant|workspace))\b"
    r"|余额|欠费|充值|账户|账号|配额|额度|密钥",
    re.IGNORECASE,
)
"""Words on the account of the gateway at a provider, which no client can change."""
_QUOTED = re.compile(
    r"(?<!\w)'[^'\s]*(?:\s[^'\s]*){0,2}'(?!\w)|\"[^\"\s]*(?:\s[^\"\s]*){0,2}\""
    r"|`[^`\s]*(?:\s[^`\s]*){0,2}`"
)


def redact_secrets(text: str) -> str:
    """Return a text of a client, or its JSON, without what looks like a credential."""
    text = _SCHEME.sub(_REMOVED, _KEY.sub(_REMOVED, text))
    return _NAMED.sub(rf"\1{_REMOVED}", text)


def concerns_account(text: str) -> bool:
    """Return whether a provider's text is about the gateway's account.

    Few words in quotes, which are mostly of the request, do not count.
    """
    return _ACCOUNT.search(_QUOTED.sub("", text[:_MAX_READ])) is not None


class MessageCleaner:
    """Redacts texts of one provider, given its host names, its secrets and its headers."""

    def __init__(
        self, hosts: Iterable[str], secrets: Iterable[str], headers: Iterable[str] = ()
    ) -> None:
        self._hosts = _host_pattern(hosts)
        self._secrets = SecretFinder(secrets, headers)

    def clean(self, raw: Any, fallback: str, *ids: str) -> str:
        """`raw` redacted, in one line of at most 500 characters; `fallback` where nothing is left.

        Also for a text on the gateway's account at the provider. `ids` are further texts to remove,
        such as the provider's id of the job.
        """
        if not isinstance(raw, str):
            return fallback
        text = _drop_invisible(raw)
        if concerns_account(text):
            return fallback
        text = self._secrets.remove(text, _REMOVED)
        for known in ids:
            if len(known) > 3:
                text = text.replace(known, _REMOVED)
        text = text[:_MAX_READ]
        for pattern in (*_PATTERNS, self._hosts):
            text = pattern.sub(_REMOVED, text)
        text = _LONG.sub(_drop_random, text)
        text = " ".join(text.split())
        if not any(c.isalnum() for c in text.replace(_REMOVED, "")):
            return fallback
        return text if len(text) <= MAX_MESSAGE else text[: MAX_MESSAGE - 1].rstrip() + "…"


def _drop_random(found: re.Match[str]) -> str:
    """Keep a long word that reads as a name (`output_resolution_1080p`), remove a random one."""
    word = found[0]
    pieces = re.split(r"[^A-Za-z0-9]+", word)
    random = any(
        len(piece) > 32 or (len(piece) > 7 and any(c.isdigit() for c in piece)) for piece in pieces
    )
    # names change between capitals, small letters and digits less often
    changes = sum(max(0, len(_RUN.findall(piece)) - 1) for piece in pieces)
    return _REMOVED if random or 6 * changes >= len(word) else word


def _host_pattern(hosts: Iterable[str]) -> re.Pattern[str]:
    """Pattern of the hosts and their sibling hosts, with port and path."""
    names: set[str] = set()
    for host in hosts:
        name = host.lower().removeprefix("*.")
        names.add(name)
        if not _NUMBERED_HOST.fullmatch(name):
            names.add(".".join(name.rsplit(".", 2)[-2:]))
    if not names:
        return re.compile(r"(?!)")
    alternatives = "|".join(re.escape(name) for name in sorted(names, key=len, reverse=True))
    return re.compile(
        rf"(?<![\w-])(?:[\w-]{{1,63}}\.){{0,8}}(?:{alternatives})(?![\w-])(?::\d+)?(?:/\S*)?",
        re.IGNORECASE,
    )


def _drop_invisible(text: str) -> str:
    """Replace control characters; remove formatting ones, which could hide a secret."""
    kept = []
    for character in text[: 4 * _MAX_READ]:
        kind = unicodedata.category(character)
        if kind in ("Cc", "Zl", "Zp"):
            kept.append(" ")
        elif kind[0] != "C":
            kept.append(character)
    return "".join(kept)
