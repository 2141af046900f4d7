"""Moderations: texts and images judged by a model's provider (contract §6)."""
