"""Files: checked, expired, removed with their bytes, and compared with the object store."""
