"""What users do with an API key over REST: make tasks, follow them, and fetch their videos."""
