"""The controller of GatewayTask: intake, submission, polling and ending, one module each."""
