"""`/api/v1/management`: keys, guardrails, usage and members of one account (contract §9).

It has no state of its own: everything is a resource, written with compare-and-set.
"""
