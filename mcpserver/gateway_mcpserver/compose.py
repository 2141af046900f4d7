"""The composition root of the MCP process: the only module that names adapters."""
