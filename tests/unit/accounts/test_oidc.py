"""ID tokens: only those of the provider, for this client and this sign-in, are believed."""

import time
from types import SimpleNamespace

import pytest
from joserfc import jwt
from joserfc.jwk import ECKey, OctKey, RSAKey

from gateway_core.accounts.oidc import OidcClient, SignOnFailed

ISSUER = "https://id.example.com"
KEY = RSAKey.generate_key(2048, parameters={"kid": "a"})
OTHER = RSAKey.generate_key(2048, parameters={"kid": "a"})
NEW = ECKey.generate_key("P-256", parameters={"kid": "b"})
GOOD = {"iss": ISSUER, "aud": "gateway", "sub": "1", "nonce": "n", "email": "a@example.com"}


class Provider(OidcClient):
    """A client whose calls are answered here."""

    def __init__(self, token="", **described):
        super().__init__(SimpleNamespace(), ISSUER, "gateway", "secret", "https://gw/cb")
        self.calls = []
        self.keys = [KEY]
        self.token = token
        self.answers = {
            f"{ISSUER}/.well-known/openid-configuration": {
                "issuer": ISSUER,
                "authorization_endpoint": f"{ISSUER}/auth",
                "token_endpoint": f"{ISSUER}/token",
                "jwks_uri": f"{ISSUER}/keys",
                "userinfo_endpoint": f"{ISSUER}/me",
                **described,
            },
            f"{ISSUER}/me": {"sub": "1", "email": "me@example.com", "email_verified": True},
        }

    async def _call(self, method, url, **given):
        self.calls.append(url)
        if url == f"{ISSUER}/token":
            return {"id_token": self.token, "access_token": "t"}
        if url == f"{ISSUER}/keys":
            return {"keys": [key.as_dict(private=False) for key in self.keys]}
        return self.answers[url]

    async def who(self):
        return await self.redeem("code", "verifier", "n")


def sign(key=KEY, alg="RS256", kid="a", **claims):
    now = int(time.time())
    given = {**GOOD, "iat": now, "exp": now + 60, "email_verified": True, **claims}
    kept = {name: value for name, value in given.items() if value is not None}
    return jwt.encode({"alg": alg, "kid": kid}, kept, key, algorithms=[alg])


async def test_good_token_names_the_person():
    identity = await Provider(sign(name="Ann")).who()
    assert (identity.issuer, identity.subject) == (ISSUER, "1")
    assert (identity.email, identity.name) == ("a@example.com", "Ann")


@pytest.mark.parametrize(
    "token",
    [
        "",
        None,
        7,
        "x.y.z",
        sign(OTHER),
        sign(iss="https://evil.example"),
        sign(aud="another"),
        sign(aud=["another"]),
        sign(azp="another"),
        sign(nonce="other"),
        sign(nonce=None),
        sign(exp=int(time.time()) - 3600),
        sign(exp=None),
        sign(iat=None),
        sign(sub=None),
        sign(OctKey.import_key("s" * 32), "HS256"),
        "eyJhbGciOiJub25lIn0." + sign().split(".")[1] + ".",
        sign()[:-8] + "AAAAAAAA",
    ],
)
async def test_any_other_token_is_refused(token):
    with pytest.raises(SignOnFailed):
        await Provider(token).who()


@pytest.mark.parametrize("verified", [False, None, "true", 1])
async def test_email_counts_only_where_it_is_verified(verified):
    assert (await Provider(sign(email_verified=verified)).who()).email is None


async def test_email_may_be_in_the_user_information_of_the_same_person():
    token = sign(email=None, email_verified=None)
    assert (await Provider(token).who()).email == "me@example.com"
    provider = Provider(token)
    provider.answers[f"{ISSUER}/me"] = {"sub": "2", "email": "x@example.com"}
    with pytest.raises(SignOnFailed, match="another person"):
        await provider.who()


async def test_keys_are_read_again_for_a_new_key_and_not_for_each_token():
    provider = Provider(sign())
    await provider.who()
    await provider.who()
    assert provider.calls.count(f"{ISSUER}/keys") == 1
    provider.keys.append(NEW)
    provider.token = sign(NEW, "ES256", "b")
    provider._kept[f"{ISSUER}/keys"] = (
        provider._monotonic() - 61,
        provider._kept[f"{ISSUER}/keys"][1],
    )
    await provider.who()
    provider.token = sign(OTHER, kid="c")
    for _ in range(3):
        with pytest.raises(SignOnFailed):
            await provider.who()
    assert provider.calls.count(f"{ISSUER}/keys") == 2


async def test_provider_must_call_itself_by_its_name():
    with pytest.raises(SignOnFailed, match="another name"):
        await Provider(sign(), issuer="https://evil.example").who()
    with pytest.raises(SignOnFailed, match="declares no"):
        await Provider(sign(), token_endpoint="javascript:x").who()
