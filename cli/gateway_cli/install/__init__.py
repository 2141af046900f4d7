"""What an installation needs once: its secrets, its first objects, and a test of it all.

The steps of the chart's hook Jobs (`gatewayctl apply` and `gatewayctl install …`); each may be
repeated, and finds what an earlier run has made.
"""
