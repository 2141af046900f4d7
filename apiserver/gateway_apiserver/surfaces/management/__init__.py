"""`/api/v1/management`: keys, guardrails, usage and members of one account (contract §9).

It has no state of its own: everything is a resource, written with compare-and-set.
"""

from dataclasses import replace

from gateway_core.accounts.roles import Act
from gateway_core.admission.admission import Access

ROOT = "/api/v1/management"
LABEL = "management"
GOVERN = Access(Act.GOVERN, rate="management")
GOVERN_OWN = replace(GOVERN, confines=True)
CREATE_OWN = replace(GOVERN_OWN, creates=True)
CREATE = Access(Act.GOVERN, creates=True, rate="management")
