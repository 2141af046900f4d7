"""GatewayOAuthClient, an application that asks for access, and GatewayGrant, access given to it.

Both hold digests only (contract §10.5 to §10.7).
"""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from gateway_core.api.resource import (
    AGE,
    IMMUTABLE,
    SET_LIST,
    Name,
    Part,
    Resource,
    Sha256,
    Time,
    checked,
    map_list,
    rule,
)

CLIENT_PREFIX = "client"
GRANT_PREFIX = "grant"

Scope = Literal["mcp:read", "mcp:tasks"]
SCOPES: tuple[Scope, ...] = ("mcp:read", "mcp:tasks")
"""All scopes, in the order in which they are listed (contract §10.4)."""

AuthMethod = Literal["none", "client_secret_post", "client_secret_basic"]
MOST_REDIRECT_URIS = 10
MOST_URI_CHARACTERS = 1024
MOST_CLIENT_NAME = 100
MOST_CLIENT_ID = 512
MOST_ACCESS_TOKENS = 8
"""Access tokens of a grant that are valid at once; an older one ends early."""

ClientName = Annotated[str, Field(min_length=1, max_length=MOST_CLIENT_NAME)]
ScopeList = Annotated[list[Scope], Field(min_length=1, max_length=8, json_schema_extra=SET_LIST)]
PepperVersion = Annotated[int, Field(ge=1, le=1000)]
Generation = Annotated[int, Field(ge=1, le=2**31 - 1)]

_GRANT_NAME_RULE = rule(
    "self.metadata.name.matches('^grant-[a-z0-9-]{0,56}[a-z0-9]$')",
    "metadata.name must be `grant-` and 1 to 57 lowercase letters, digits or dashes",
)
_CLIENT_NAME_RULE = rule(
    "self.metadata.name.matches('^client-[a-z0-9-]{0,55}[a-z0-9]$')",
    "metadata.name must be `client-` and 1 to 56 lowercase letters, digits or dashes",
)


class SecretDigest(Part):
    """A secret of the client, as a digest."""

    digest: Annotated[
        Sha256,
        Field(
            description="Hex HMAC-SHA256 of the secret under the pepper; the secret itself is"
            " stored nowhere."
        ),
    ]
    pepper_version: Annotated[
        PepperVersion,
        Field(description="Version of the pepper under which the digest was made; default 1."),
    ] = 1


class OAuthClientSpec(Part):
    """What the client registered (RFC 7591)."""

    client_name: Annotated[
        ClientName, Field(description="Name that the client gave itself. It proves nothing.")
    ]
    redirect_uris: Annotated[
        list[Annotated[str, Field(min_length=1, max_length=MOST_URI_CHARACTERS)]],
        Field(
            min_length=1,
            max_length=MOST_REDIRECT_URIS,
            json_schema_extra=SET_LIST,
            description="Addresses to which users may be sent back, compared exactly (the port of a"
            " loopback address may differ).",
        ),
    ]
    token_endpoint_auth_method: Annotated[
        AuthMethod,
        Field(
            json_schema_extra=IMMUTABLE,
            description="How the client authenticates at the token endpoint; default none (a public"
            " client with PKCE). Cannot be changed.",
        ),
    ] = "none"  # noqa: S105
    secret: Annotated[
        SecretDigest | None,
        Field(description="Digest of the client's secret; absent with method none."),
    ] = None
    scopes: Annotated[
        ScopeList | None, Field(description="Scopes that the client may ask for. Absent: all.")
    ] = None
    application_type: Annotated[
        Literal["native", "web"] | None,
        Field(
            description="native: an application on the user's machine. web: a web server. Absent:"
            " not told."
        ),
    ] = None
    dynamic: Annotated[
        bool,
        Field(
            description="Whether the client registered itself. The operator deletes such a client"
            " when it is not used; one that an admin declares stays. Default false."
        ),
    ] = False
    authorized: Annotated[
        bool,
        Field(
            description="Whether a user has ever given the client access. The operator deletes a"
            " dynamic client that is a day old and has none. Default false.",
            json_schema_extra=checked(
                rule("self || !oldSelf", "may not be changed back once true")
            ),
        ),
    ] = False
    authorized_by: Annotated[
        Name | None,
        Field(description="The first user who gave it access.", json_schema_extra=IMMUTABLE),
    ] = None
    last_authorized_time: Annotated[
        Time | None, Field(description="When a user last gave it access.")
    ] = None


class OAuthClientStatus(Part):
    """What the operator knows of its use."""

    last_used_time: Annotated[
        Time | None,
        Field(description="When a token of the client was last used; updated now and then."),
    ] = None


class GatewayOAuthClient(Resource):
    """An application that was registered at the authorization server."""

    kind_name: ClassVar[str] = "GatewayOAuthClient"
    plural: ClassVar[str] = "gatewayoauthclients"
    short_name: ClassVar[str] = "gwclient"
    columns: ClassVar[list[Any]] = [
        ("Client", "string", ".spec.clientName", 0),
        ("Redirect", "string", ".spec.redirectUris[0]", 0),
        ("Authorized", "boolean", ".spec.authorized", 0),
        ("Method", "string", ".spec.tokenEndpointAuthMethod", 1),
        ("LastUsed", "date", ".status.lastUsedTime", 0),
        AGE,
    ]
    selectable: ClassVar[list[str]] = [".spec.authorized"]
    rules: ClassVar[list[dict[str, Any]]] = [_CLIENT_NAME_RULE]

    spec: OAuthClientSpec
    status: OAuthClientStatus = Field(default_factory=OAuthClientStatus)


class RefreshToken(Part):
    """The one refresh token that is valid.

    An earlier generation presented again is a reuse, but for a repetition within 30 s.
    """

    digest: Annotated[
        Sha256,
        Field(
            description="Hex HMAC-SHA256 of the secret under the pepper; the secret itself is"
            " stored nowhere."
        ),
    ]
    pepper_version: Annotated[
        PepperVersion,
        Field(description="Version of the pepper under which the digest was made; default 1."),
    ] = 1
    generation: Annotated[
        Generation,
        Field(
            description="Number of the refresh, from 1: raised with every refresh. An earlier token"
            " presented again revokes the grant, but for the one before within 30 s of its first"
            " use."
        ),
    ] = 1
    issued_time: Annotated[
        Time | None,
        Field(
            description="When the token was issued: the first use of the one before. Absent: by an"
            " older release."
        ),
    ] = None
    expiration_time: Annotated[
        Time, Field(description="When the token ends: 30 days after it was issued.")
    ]


class AccessToken(Part):
    """An access token that was issued."""

    generation: Annotated[
        Generation, Field(description="Generation of the refresh token that it was issued with.")
    ]
    digest: Annotated[
        Sha256,
        Field(
            description="Hex HMAC-SHA256 of the secret under the pepper; the secret itself is"
            " stored nowhere."
        ),
    ]
    pepper_version: Annotated[
        PepperVersion,
        Field(description="Version of the pepper under which the digest was made; default 1."),
    ] = 1
    scopes: Annotated[ScopeList, Field(description="Scopes that the token has.")]
    expiration_time: Annotated[Time, Field(description="When the token ends.")]


class GrantSpec(Part):
    """Who let which client act for which account, and the tokens of that."""

    user_name: Annotated[
        Name,
        Field(
            json_schema_extra=IMMUTABLE,
            description="Name of the GatewayUser who gave the access; cannot be changed.",
        ),
    ]
    account_name: Annotated[
        Name,
        Field(
            json_schema_extra=IMMUTABLE,
            description="Name of the GatewayAccount that the client acts for; cannot be changed.",
        ),
    ]
    client_id: Annotated[
        str,
        Field(
            min_length=1,
            max_length=MOST_CLIENT_ID,
            description="`client_…` of a GatewayOAuthClient, or the URL of a metadata document;"
            " cannot be changed.",
            json_schema_extra=IMMUTABLE,
        ),
    ]
    client_name: Annotated[
        ClientName,
        Field(
            json_schema_extra=IMMUTABLE,
            description="Name of the client as it was shown at the consent; cannot be changed.",
        ),
    ]
    redirect_host: Annotated[
        str,
        Field(
            min_length=1,
            max_length=300,
            description="Where the user was sent back to: a host, or the scheme of an application;"
            " cannot be changed.",
            json_schema_extra=IMMUTABLE,
        ),
    ]
    scopes: Annotated[
        list[Scope],
        Field(
            min_length=1,
            max_length=8,
            json_schema_extra={**SET_LIST, **IMMUTABLE},
            description="Scopes that the user agreed to; cannot be changed.",
        ),
    ]
    resource: Annotated[
        str,
        Field(
            min_length=1,
            max_length=512,
            description="Audience of the access tokens: the address of the resource server; cannot"
            " be changed.",
            json_schema_extra=IMMUTABLE,
        ),
    ]
    expiration_time: Annotated[
        Time,
        Field(
            description="When the grant ends, also while it is in use: 180 days after the consent."
            " Cannot be changed.",
            json_schema_extra=IMMUTABLE,
        ),
    ]
    refresh_token: Annotated[
        RefreshToken, Field(description="The one refresh token that is valid.")
    ]
    access_tokens: Annotated[
        list[AccessToken] | None,
        Field(
            description="Access tokens that may still be valid, at most 8; a further one ends the"
            " oldest."
        ),
        map_list("generation", "digest", max_items=MOST_ACCESS_TOKENS),
    ] = None


class GrantStatus(Part):
    """What the operator knows of its use."""

    last_used_time: Annotated[
        Time | None,
        Field(description="When a token of the grant was last used; updated now and then."),
    ] = None


class GatewayGrant(Resource):
    """Access of one client to one account, given by one user. To delete it revokes the access."""

    kind_name: ClassVar[str] = "GatewayGrant"
    plural: ClassVar[str] = "gatewaygrants"
    short_name: ClassVar[str] = "gwgrant"
    columns: ClassVar[list[Any]] = [
        ("User", "string", ".spec.userName", 0),
        ("Account", "string", ".spec.accountName", 0),
        ("Client", "string", ".spec.clientName", 0),
        ("Host", "string", ".spec.redirectHost", 0),
        ("Scopes", "string", ".spec.scopes", 0),
        ("LastUsed", "date", ".status.lastUsedTime", 0),
        ("ClientId", "string", ".spec.clientId", 1),
        ("Refreshes", "integer", ".spec.refreshToken.generation", 1),
        ("Expires", "string", ".spec.refreshToken.expirationTime", 1),
        AGE,
    ]
    selectable: ClassVar[list[str]] = [".spec.userName", ".spec.accountName", ".spec.clientId"]
    rules: ClassVar[list[dict[str, Any]]] = [_GRANT_NAME_RULE]

    spec: GrantSpec
    status: GrantStatus = Field(default_factory=GrantStatus)
