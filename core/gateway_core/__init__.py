"""What every process of the gateway shares: words, decisions, ports and their adapters."""
