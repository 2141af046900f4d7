"""The account's console: pages for those who use the gateway and pay for it, behind the sign-in."""
