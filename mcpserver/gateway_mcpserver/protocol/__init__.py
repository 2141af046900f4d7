"""Model Context Protocol over HTTP: messages, eras, what is checked before a call, streams."""
