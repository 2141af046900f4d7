"""Steps of the chart's hook Jobs: `gatewayctl apply` and `gatewayctl install …`.

Each may be repeated, and finds what an earlier run has made.
"""
