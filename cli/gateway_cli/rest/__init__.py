"""What users do with an API key over REST: tasks, files and batches, up, followed and down."""
