"""`make pictures`: the pictures of the documents, made from the running product.

`demo` makes docs/pictures/demo.svg, the terminal of `make demo`, which `terminal` draws. `console`
makes docs/pictures/console-*.png, pages of the account that `studio` sets up. `dashboard` makes
docs/pictures/dashboard.svg from the dashboard's queries to a Prometheus, under the calls of `load`.
Each starts a local run by `gateway`, in a temporary folder and on free ports, and ends it with all
that it wrote, also after a failure.
"""
