"""Sign-in on fakes, with a person: what the tests of passwords and links work with."""

import pytest

from gateway_core.accounts.passwords import PasswordChecker, hash_password
from gateway_core.accounts.records import project_user
from gateway_core.accounts.sessions import SessionStore
from gateway_core.accounts.sign_in import (
    SIGN_IN_ALLOWANCES,
    KnownBrowsers,
    SignIn,
    SignInRefused,
)
from gateway_core.accounts.throttle import Allowance, Throttle
from gateway_core.kube.read_through import ReadThrough
from tests.fakes.informer import FakeInformer
from tests.fakes.kubernetes import FakeKubernetes
from tests.fakes.transient import FakeTransient

PASSWORD = "k6rmj-xe446-4zzy5-hjuhn-vhhw3"
CHOSEN = "correct horse battery"
HASH = hash_password(PASSWORD)
ADDRESS = "192.0.2.1"
ID_KEY = b"i" * 32


class Scene:
    """Ann with a password."""

    def __init__(self):
        self.kube = FakeKubernetes()
        self.store = FakeTransient()
        self.users = FakeInformer(self.kube, "gatewayusers", project_user)
        allowances = {**SIGN_IN_ALLOWANCES, "sign-in-address": Allowance(60, 60)}
        self.service = SignIn(
            self.kube,
            ReadThrough(self.users, self.kube, "gatewayusers"),
            PasswordChecker(ID_KEY),
            SessionStore(self.store, lambda: self.store.now),
            Throttle(self.store, allowances, ID_KEY),
            KnownBrowsers(ID_KEY),
        )
        self.put("ann")

    def put(self, name, **spec):
        base = {"displayName": name, "email": "Ann@Example.com", "passwordHash": HASH}
        self.kube.put("gatewayusers", {"metadata": {"name": name}, "spec": {**base, **spec}})

    async def enter(self, email="ann@example.com", password=PASSWORD, address=ADDRESS, mark=""):
        return await self.service.sign_in(email, password, address, mark)

    async def sign_in(self, *given, **named):
        return (await self.enter(*given, **named)).token

    async def fail(self, times=1, **named):
        for _ in range(times):
            with pytest.raises(SignInRefused):
                await self.enter(password="wrong", **named)

    async def who(self, token):
        found = await self.service.find(token)
        return None if found is None else found.user.name
