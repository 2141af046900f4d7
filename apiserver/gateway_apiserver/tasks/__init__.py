"""Task service: drafts, creation, look-up and cache of tasks; free of web frameworks."""
