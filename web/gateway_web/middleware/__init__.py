"""Around every request: request id, log, metrics, traces; limits of connections and bodies."""
