"""What the surfaces of the OpenAI form below `/v1` share: paths, callers, bodies, lists (§0, §1).

Files, uploads, batches and moderations are built of it; they differ in what they do.
"""
