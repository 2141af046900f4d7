"""What every process of the gateway shares: the words, the decisions, the ports and their adapters."""
