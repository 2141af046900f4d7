"""One room for each technology that fulfils a port; only `compose` modules name them."""
