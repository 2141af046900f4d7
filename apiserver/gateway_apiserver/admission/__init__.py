"""The one way in for every paid call, and what each kind of call brings to it."""
