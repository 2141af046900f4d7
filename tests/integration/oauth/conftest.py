"""A registered client, and a person with a password and accounts of their own."""

from dataclasses import dataclass

import pytest

from gateway_core.accounts.passwords import generate_password, hash_password
from tests.integration.oauth.flows import OAuthClient
from tests.servers.browser import Browser
from tests.servers.tenants import describe, describe_account, unique
from tests.servers.world import World, wait_for


@dataclass(frozen=True)
class Person:
    """A user who can sign in. `accounts` are theirs."""

    world: World
    name: str
    email: str
    password: str
    accounts: tuple[str, ...]

    def apply(self, **spec):
        """The user with further fields."""
        roles = [{"accountName": name, "role": "member"} for name in self.accounts]
        base = {
            "displayName": self.name,
            "email": self.email,
            "memberships": roles,
            "passwordHash": hash_password(self.password),
        }
        self.world.apply(describe("User", self.name, {**base, **spec}))


async def make_person(world, *accounts, **spec):
    name = unique("user")
    person = Person(world, name, f"{name}@example.com", generate_password(), accounts)
    person.apply(**spec)

    async def can_sign_in():
        async with Browser(world.env["GATEWAY_BASE_URL"]) as browser:
            page = await browser.sign_in(person.email, person.password)
        return page.status == 303

    await wait_for(can_sign_in)
    return person


@pytest.fixture
async def client(world):
    async with OAuthClient(world) as client:
        await client.register()
        yield client


@pytest.fixture(scope="session")
def own_accounts(world):
    """Two accounts of the person."""
    names = (unique("first"), unique("second"))
    world.apply(*(describe_account(name) for name in names))
    return names


@pytest.fixture
async def person(world, own_accounts):
    return await make_person(world, *own_accounts)


@pytest.fixture
async def browser(world, person):
    """A browser in which the person is signed in."""
    async with Browser(world.env["GATEWAY_BASE_URL"]) as browser:
        await browser.sign_in(person.email, person.password)
        yield browser
