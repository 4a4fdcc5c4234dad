"""What runs on the other side of the wall: standard library only, never imported by rove's own process.

The processes of a sandbox, each started by the one before:

    zygote        one per backend; has imported what sessions need, lives in the room of read-only files, forks sessions
    supervisor    one per session, the first process of its own process namespace; runs one call after the other
    Python, bash  what the model's code runs in, forked from the supervisor
"""
