"""Commands of cluster admins, a module for each noun; all act on the gateway's objects alone."""
