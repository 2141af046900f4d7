"""Language models: Chat Completions, Responses, generateContent and the list of models."""
