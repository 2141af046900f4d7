"""Sign-in, the authorization server and the pages of both as one part of the application."""

from starlette.routing import BaseRoute

from gateway_apiserver.parts import ApiParts
from gateway_apiserver.surfaces.oauth.endpoints import (
    OAUTH_ALLOWANCES,
    DiscoveryRoutes,
    OAuthRoutes,
)
from gateway_apiserver.surfaces.pages.consent import ConsentRoutes
from gateway_apiserver.surfaces.pages.html import Pages
from gateway_apiserver.surfaces.pages.passwords import PasswordRoutes
from gateway_apiserver.surfaces.pages.settings import SettingsRoutes
from gateway_apiserver.surfaces.pages.sign_in import SignInRoutes
from gateway_apiserver.surfaces.pages.sso import SsoRoutes
from gateway_core.accounts.passwords import PasswordChecker
from gateway_core.accounts.sessions import SessionStore
from gateway_core.accounts.sign_in import SIGN_IN_ALLOWANCES, KnownBrowsers, SignIn
from gateway_core.accounts.sso import PendingCookies, SignOn
from gateway_core.accounts.throttle import Allowance, Throttle
from gateway_core.admission.intake import Intake
from gateway_core.api.account import GatewayAccount, GatewayUser
from gateway_core.api.ids import IdMint
from gateway_core.api.oauth import GatewayOAuthClient
from gateway_core.failpoints import Failpoints
from gateway_core.kube.read_through import ReadThrough
from gateway_core.oauth.authorization import Authorizations
from gateway_core.oauth.clients import ClientDirectory, MetadataDocuments
from gateway_core.oauth.codes import CodeStore
from gateway_core.oauth.grants import Grants
from gateway_core.oauth.registration import Registrar
from gateway_core.oauth.room import ClientIndex
from gateway_core.oauth.rotation import Lifetimes
from gateway_core.oauth.tokens import TokenMint


def add_sign_in(
    routes: list[BaseRoute], parts: ApiParts, mint: IdMint, intake: Intake, failpoints: Failpoints
) -> tuple[Pages, SignInRoutes]:
    """Add sign-in, the authorization server, and the pages of both."""
    settings, kube, tables, peppers = parts.settings, parts.kube, parts.tables, parts.peppers
    accounts = ReadThrough(tables.accounts, kube, GatewayAccount.plural)
    users = ReadThrough(tables.users, kube, GatewayUser.plural)
    clients = ReadThrough(tables.clients, kube, GatewayOAuthClient.plural)
    throttle = Throttle(
        parts.transient,
        {
            **SIGN_IN_ALLOWANCES,
            **OAUTH_ALLOWANCES,
            "register": Allowance(settings.oauth_registrations_per_minute, 60),
            "register-day": Allowance(settings.oauth_registrations_per_day, 86_400),
            "register-network": Allowance(10 * settings.oauth_registrations_per_day, 86_400),
            "sign-in-address": Allowance(settings.sign_ins_per_minute, 60),
        },
        parts.id_key,
    )
    documents = MetadataDocuments(parts.documents) if settings.oauth_documents else None
    directory = ClientDirectory(clients, mint, peppers, documents)
    authorizations = Authorizations(directory, settings.base_url, settings.mcp_url)
    registrar, index = None, ClientIndex(tables.clients)
    if settings.oauth_registration:
        most = settings.oauth_unused_clients
        registrar = Registrar(kube, tables.clients, index, mint, peppers, most_unused=most)
    grants = Grants(
        kube,
        CodeStore(parts.transient),
        tables.grants,
        index,
        accounts,
        users,
        mint,
        TokenMint(parts.id_key),
        peppers,
        lifetimes=Lifetimes(
            access=settings.oauth_access_seconds,
            refresh=settings.oauth_refresh_idle_seconds,
            family=settings.oauth_family_seconds,
        ),
    )
    DiscoveryRoutes(
        settings.base_url,
        settings.mcp_url,
        registration=settings.oauth_registration,
        documents=settings.oauth_documents,
    ).add_to(routes)
    OAuthRoutes(registrar, directory, grants, authorizations, throttle, intake).add_to(routes)
    pages = Pages(settings.base_url)
    pages.add_to(routes)
    sessions = SessionStore(parts.transient)
    browsers = KnownBrowsers(parts.id_key)
    passwords = PasswordChecker(parts.id_key)
    service = SignIn(kube, users, passwords, sessions, throttle, browsers, failpoints)
    if parts.oidc is not None:
        policy = settings.sign_on_policy
        cookies = PendingCookies(parts.id_key)
        sign_on = SignOn(kube, sessions, tables.users, parts.oidc, policy, cookies)
        SsoRoutes(pages, service, sign_on, throttle).add_to(routes)
    sign_in = SignInRoutes(pages, service, settings.oidc_title if parts.oidc else "")
    sign_in.add_to(routes)
    PasswordRoutes(pages, service).add_to(routes)
    ConsentRoutes(pages, sign_in, authorizations, grants, accounts, throttle).add_to(routes)
    SettingsRoutes(
        pages,
        sign_in,
        service,
        grants,
        tables.accounts,
        tables.users,
        parts.key_use,
        throttle,
    ).add_to(routes)
    return pages, sign_in
