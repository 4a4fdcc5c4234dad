"""A module for the tests of workers, whose functions print, fail, hang, exit and start processes."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time

CHATTER = "not for the protocol " * 20


def setup(trouble: str = "", **args):
    print(CHATTER)
    if trouble == "raise":
        raise ValueError("no such data")
    if trouble == "exit":
        sys.exit(3)
    if trouble == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    while trouble == "hang":
        time.sleep(1)
    return {"python": sys.executable, "args": args}


class Session:
    def __init__(self):
        self.total = 0

    def add(self, number):
        self.total += number
        return self.total

    def echo(self, value):
        os.write(1, b"\x00\xff garbage")
        print(value, file=sys.stderr)
        return value

    def pid(self):
        return os.getpid()

    def child(self):
        return subprocess.Popen(["sleep", "600"]).pid

    def daemon(self):
        """Start a process in another session whose parent ends; return its id."""
        shell = ["sh", "-c", "setsid sleep 600 >/dev/null 2>&1 & echo $!"]
        return int(subprocess.run(shell, capture_output=True, text=True, check=True).stdout)

    def draw(self, seed):
        random.seed(seed)
        return random.random()

    def divide(self, by):
        return 1 / by

    def quit(self):
        sys.exit("enough")

    def die(self):
        print("the last thing I say", flush=True)
        os.kill(os.getpid(), signal.SIGSEGV)

    def leave(self, status):
        os._exit(status)

    def spin(self):
        while True:
            pass

    def unserializable(self):
        return {1, 2}

    def allocate_gibibyte(self):
        return len(bytearray(1 << 30))

    def variables(self):
        return dict(os.environ)
