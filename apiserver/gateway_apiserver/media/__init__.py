"""The media host: generated videos by signed address, on an origin of its own."""
