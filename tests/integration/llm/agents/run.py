"""Run the conversations of a module with each model; print what went wrong as JSON.

The packages of agents are in `PYTHONPATH`, not in the environment of the tests.
"""

import importlib
import json
import os
import sys
import traceback


def main() -> None:
    """Run all functions of the module named by the first argument that begin with `talk_`."""
    module = importlib.import_module(sys.argv[1])
    results = {}
    for name in [name for name in vars(module) if name.startswith("talk_")]:
        for model in os.environ["MODELS"].split(","):
            try:
                getattr(module, name)(model)
                results[f"{name} {model}"] = None
            except Exception:
                results[f"{name} {model}"] = traceback.format_exc()
    print(json.dumps(results))


if __name__ == "__main__":
    main()
