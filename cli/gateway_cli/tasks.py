"""`gatewayctl tasks`: two ways to the same tasks.

Users make and follow their own with an API key over REST; admins see all of a cluster's with
kubectl credentials.
"""

import typer

from gateway_cli.admin import tasks as admin
from gateway_cli.rest import tasks as rest

WITH_KEY = "With an API key, over REST (GATEWAY_BASE_URL, GATEWAY_API_KEY)"
WITH_KUBECTL = "With kubectl credentials"

app = typer.Typer(add_completion=False, no_args_is_help=True)

app.command("create", rich_help_panel=WITH_KEY)(rest.create)
app.command("get", rich_help_panel=WITH_KEY)(rest.get)
app.command("wait", rich_help_panel=WITH_KEY)(rest.wait)
app.command("list", rich_help_panel=WITH_KUBECTL)(admin.list_tasks)
app.command("describe", rich_help_panel=WITH_KUBECTL)(admin.describe)
app.command("cancel", rich_help_panel=WITH_KUBECTL)(admin.cancel)
app.command("redeliver", rich_help_panel=WITH_KUBECTL)(admin.redeliver)
