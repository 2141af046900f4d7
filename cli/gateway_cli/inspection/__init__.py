"""The state of a gateway as an admin sees it from outside: `status`, `doctor` and `top`."""
