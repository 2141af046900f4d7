"""Batches as clients have them: `/v1/batches` (contract §5). The operator runs them."""
