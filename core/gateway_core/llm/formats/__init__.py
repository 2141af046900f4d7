"""Formats of language models: requests, answers, streams and translations. Pure."""
