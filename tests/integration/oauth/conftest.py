"""A registered client, and a person with a password and accounts of their own."""

import asyncio
import itertools
from dataclasses import dataclass

import pytest

from gateway_core.accounts.passwords import generate_password, hash_password
from tests.integration.oauth.flows import OAuthClient
from tests.servers.browser import Browser
from tests.servers.tenants import describe, describe_account, unique
from tests.servers.world import World, wait_for

PEOPLE = 4


@dataclass(frozen=True)
class Person:
    """A user who can sign in. `accounts` are theirs."""

    world: World
    name: str
    email: str
    password: str
    accounts: tuple[str, ...]

    def describe(self, **spec):
        """The user with further fields."""
        roles = [{"accountName": name, "role": "member"} for name in self.accounts]
        base = {
            "displayName": self.name,
            "email": self.email,
            "memberships": roles,
            "passwordHash": hash_password(self.password),
        }
        return describe("User", self.name, {**base, **spec})

    def apply(self, **spec):
        """Change fields of the user."""
        self.world.apply(self.describe(**spec))

    async def sign_in(self):
        """Sign in; the cookies of the browser."""
        async with Browser(self.world.env["GATEWAY_BASE_URL"]) as browser:
            page = await browser.sign_in(self.email, self.password)
            assert page.status == 303, page.text
            return browser.cookies

    async def wait_known(self):
        """Wait until the API knows the user.

        Each try is of another address, as the tries of one at an email are limited.
        """
        hosts = (f"127.1.0.{number}" for number in range(1, 255))

        async def can_sign_in():
            base = self.world.env["GATEWAY_BASE_URL"]
            async with Browser(base, local_host=next(hosts)) as browser:
                page = await browser.sign_in(self.email, self.password)
            return page.status == 303

        await wait_for(can_sign_in, what=f"{self.email} known")


async def make_person(world, *accounts, **spec):
    (person,) = await make_people(world, 1, accounts, **spec)
    return person


async def make_people(world, count, accounts, **spec):
    """Users of these accounts who can sign in."""
    names = [unique("user") for _ in range(count)]
    password = generate_password()
    people = [Person(world, name, f"{name}@example.com", password, accounts) for name in names]
    world.apply(*(person.describe(**spec) for person in people))
    for person in people:
        await person.wait_known()
    return people


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


@pytest.fixture(scope="module")
def people(world, own_accounts):
    """People with the cookies of their browsers, in turn: codes are limited for each of them."""

    async def make():
        people = await make_people(world, PEOPLE, own_accounts)
        return [(person, await person.sign_in()) for person in people]

    return itertools.cycle(asyncio.run(make()))


@pytest.fixture
def signed_in(people):
    """A person and the cookies of a browser of theirs."""
    return next(people)


@pytest.fixture
def person(signed_in):
    """A person whom other tests meet too: tests that change a user make their own."""
    return signed_in[0]


@pytest.fixture
async def browser(world, signed_in):
    """A browser in which the person is signed in."""
    async with Browser(world.env["GATEWAY_BASE_URL"]) as browser:
        browser.cookies = dict(signed_in[1])
        yield browser


@pytest.fixture
async def newcomer(world, own_accounts):
    """A person of the test's own, and a browser in which they are signed in."""
    person = await make_person(world, *own_accounts)
    async with Browser(world.env["GATEWAY_BASE_URL"]) as browser:
        browser.cookies = await person.sign_in()
        yield person, browser
