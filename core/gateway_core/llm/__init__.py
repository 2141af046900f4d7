"""Calls of language models: formats, routes, upstream client, price and settlement."""
