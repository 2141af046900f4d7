"""Temporary files: made from a URL, of base64, or put on the media host (contract §2.5)."""
