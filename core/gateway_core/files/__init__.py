"""Files, Uploads, temporary files and the storage quota."""
