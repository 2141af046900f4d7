"""The OpenAPI document, made of the catalog as it is now; `GET /openapi.json` shows it."""
