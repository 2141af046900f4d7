"""Simulated language models with the APIs of OpenAI and Google."""
