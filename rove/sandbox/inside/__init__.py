"""The code that runs in the sandbox: it uses only the standard library, and rove's own process never imports it.

Each process starts the next one:

    zygote        one per backend: has imported the modules of sessions, sees only read-only files, forks sessions
    supervisor    one per session, the first process of its process namespace: runs one call after the other
    Python, bash  run the model's code, forked from the supervisor
"""
