"""Callbacks on their way: who may go when, what they are signed with, and the attempt itself."""
