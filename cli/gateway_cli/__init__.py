"""`gatewayctl`: the command line of Model Gateway, with the local run behind `make up`.

`admin/` has the commands of admins with kubectl credentials, `rest/` those of users with an API
key, `local/` the local run and `install/` the steps of the chart's Jobs.
"""
