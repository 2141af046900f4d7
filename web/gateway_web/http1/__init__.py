"""HTTP/1.1 connections of clients, bounded in time and memory; given to uvicorn as its `http`."""
