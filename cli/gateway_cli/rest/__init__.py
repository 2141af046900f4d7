"""Commands of users with an API key over REST: tasks, Files, Uploads and Batches."""
