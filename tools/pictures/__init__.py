"""`make pictures`: the pictures of the documents, made from the running product.

| Module | What it makes |
|---|---|
| `demo` | docs/pictures/demo.svg: the terminal of `make demo` |
"""
