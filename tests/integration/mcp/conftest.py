"""People who sign in, as the tests of the authorization server have them."""

from tests.integration.oauth.conftest import (
    browser,
    client,
    own_accounts,
    people,
    person,
    signed_in,
)

__all__ = ["browser", "client", "own_accounts", "people", "person", "signed_in"]
