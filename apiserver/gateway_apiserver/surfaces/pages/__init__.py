"""Pages for people: sign-in, consent, settings."""
