"""One room for each technology that fulfils a port; only a process's `compose` module names them."""
