"""The MCP process: Model Context Protocol on one side, the core's services on the other."""
