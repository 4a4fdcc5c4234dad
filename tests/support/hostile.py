"""Attacks by hostile code, and their outcomes in a sandbox.

    python tests/support/hostile.py     writes the tables of docs/sandbox.md

In the code, `$SECRET` is a file of the host that all users may read, `$PARENT` is the process that runs the test, and `$PORT`
is a port of the host on which a server listens.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from rove.sandbox import Result, SandboxLimits
from rove.sandbox.containment import ESSENTIAL, FEATURES

LIMITS = SandboxLimits(
    seconds=0.5,
    memory_bytes=160 << 20,
    processes=24,
    disk_bytes=16 << 20,
    files=500,
    file_bytes=8 << 20,
    open_files=64,
    output_chars=2000,
    message_bytes=1 << 20,
)
WALL = "stopped after 0.5 s"
REFUSED, MISSING, READ_ONLY = (
    "PermissionError: Operation not permitted",
    "FileNotFoundError",
    "OSError: Read-only file system",
)
DENIED = "PermissionError: Permission denied"
NUMBER_REFUSED = "runs: (-1, 'EPERM')"


async def echo(text: str) -> str:
    """Return the text; a host function that sandboxed code may call."""
    return text


async def repeat(text: str, count: int) -> str:
    """Return the text `count` times; another host function."""
    return text * count


FUNCTIONS = {"echo": echo, "repeat": repeat}


class Snippet(NamedTuple):
    """One attack."""

    name: str
    code: str
    outcome: str
    """The result of `outcome()`; "A or B" if it depends on the kernel, the user or the version of Python."""
    contained_by: str
    """The protection: a feature of `rove.sandbox.containment`, the "limits" of a process, or the "supervisor"."""
    kind: str = "python"
    seconds: float = 0.5


def libc_call(words: str) -> str:
    """Return code that calls a function of libc and shows its result and errno."""
    return (
        "import ctypes, errno, os\nlibc = ctypes.CDLL(None, use_errno=True)\nctypes.set_errno(0)\n"
        f"done = libc.{words}\ndone, errno.errorcode.get(ctypes.get_errno())"
    )


def syscall(number: int, *arguments: str) -> str:
    """Return code that makes an x86-64 system call by its number."""
    return libc_call(f"syscall({', '.join([str(number), *arguments])})")


def write_to_pipes(frame: str) -> str:
    """Return code that writes into every pipe of its process."""
    return f"import os, struct\nfor fd in range(3, 20):\n    try: os.write(fd, {frame})\n    except OSError: pass"


FIND_CALLER = "import gc\n[asking] = [one for one in gc.get_objects() if type(one).__name__ == 'HostCaller']\n"
TIME = [
    Snippet("infinite loop, every signal blocked", "import signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())\nwhile True: pass", WALL, "supervisor"),
    Snippet("sleeps, every signal ignored", "import signal, time\nfor s in signal.valid_signals() - {9, 19}: signal.signal(s, signal.SIG_IGN)\ntime.sleep(60)", WALL, "supervisor"),
    Snippet("an endless computation in C", "9 ** 9 ** 9", WALL, "supervisor"),
    Snippet("catastrophic regular expression", "import re; re.match('(a+)+$', 'a' * 50 + 'b')", WALL, "supervisor"),
    Snippet("`repr` of the value never returns", "class A:\n    def __repr__(self):\n        while True: pass\nA()", WALL, "supervisor"),
    Snippet("exception whose text never ends", "class E(Exception):\n    def __str__(self):\n        while True: pass\nraise E", WALL, "supervisor"),
    Snippet("stops itself", "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)", WALL, "supervisor"),
    Snippet("bash that catches signals and waits", "trap '' TERM INT HUP XCPU; while :; do sleep 1; done", WALL, "supervisor", "bash"),
]  # fmt: skip
PROCESSES = [
    Snippet("fork bomb", "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass", WALL, "limits"),
    Snippet("fork bomb of bash", ":(){ :|:& };:", "runs: no result", "limits", "bash"),
    Snippet("thread bomb", "import threading, time\nwhile True: threading.Thread(target=time.sleep, args=(60,), daemon=True).start()", "RuntimeError", "limits"),
    Snippet("threads that never end", "import threading\ndef spin():\n    while True: pass\nthreading.Thread(target=spin, daemon=True).start()", "runs: no result", "processes"),
    Snippet("daemon: setsid, nohup, detached", "setsid nohup sleep 98765.$PARENT >/dev/null 2>&1 & disown", "runs: no result", "processes", "bash"),
    Snippet("daemon: forks twice, every signal ignored", "import os, signal, time\nif not os.fork():\n    os.setsid()\n    if os.fork(): os._exit(0)\n    for s in signal.valid_signals() - {9, 19}: signal.signal(s, signal.SIG_IGN)\n    os.execv('/bin/sleep', ['sleep', '98765.$PARENT'])", "runs: no result", "processes"),
    Snippet("kills rove", "import os; os.kill($PARENT, 9)", "ProcessLookupError", "processes"),
    Snippet("kills all it can", "import os; os.kill(-1, 9)", "ProcessLookupError", "processes"),
    Snippet("kills its supervisor", "import os; os.kill(1, 9)", "runs: no result", "processes"),
    Snippet("stops its supervisor", "import os, signal; os.kill(1, signal.SIGSTOP)", "runs: no result", "processes"),
    Snippet("traces its supervisor", libc_call("ptrace(16, 1, 0, 0)"), NUMBER_REFUSED, "system calls"),
    Snippet("reads its supervisor's memory", syscall(310, "1", "0", "0", "0", "0", "0"), NUMBER_REFUSED, "system calls"),
    Snippet("opens its supervisor's memory", "open('/proc/1/mem', 'r+b')", MISSING, "processes"),
    Snippet("exec of another program", "import os; os.execv('/bin/sleep', ['sleep', '60'])", "Python closed its pipes", "supervisor"),
]  # fmt: skip
MEMORY = [
    Snippet("allocates 10 GB", "bytearray(10 << 30)", "MemoryError", "limits"),
    Snippet("allocates 10 GB piece by piece", "a = []\nwhile True: a.append(bytearray(1 << 25))", "MemoryError", "limits", seconds=8),
    Snippet("four processes with 120 MB each", "import os, time\npids = []\nfor _ in range(4):\n    pid = os.fork()\n    if not pid:\n        a = b'x' * (120 << 20)\n        time.sleep(0.3)\n        os._exit(0)\n    pids.append(pid)\nany(os.waitpid(pid, 0)[1] == 9 for pid in pids)", "runs: True", "memory group", seconds=8),
    Snippet("makes itself the last to be ended when memory runs out", "import os; os.write(os.open('/proc/self/oom_score_adj', os.O_WRONLY), b'-1')", DENIED, "own user"),
    Snippet("anonymous file in memory", "import os; os.memfd_create('a')", REFUSED, "system calls"),
    Snippet("System V shared memory", libc_call("shmget(0, 1 << 30, 0o1600)"), NUMBER_REFUSED, "system calls"),
    Snippet("gives itself more memory", "import resource; resource.setrlimit(resource.RLIMIT_AS, (-1, -1))", "ValueError", "own user"),
    Snippet("deep recursion", "def f(): f()\nf()", "RecursionError", "limits"),
    Snippet("deep recursion in C", "import sys\nsys.setrecursionlimit(10**9)\na = []\nfor _ in range(10**5): a = [a]\nimport json\ntry: json.dumps(a, check_circular=False)\nexcept RecursionError: raise RecursionError from None", "Python was ended by signal SIGSEGV or RecursionError", "supervisor"),
    Snippet("opens files until none are left", "a = []\nwhile True: a.append(open('/dev/null'))", "OSError: Too many open files", "limits"),
]  # fmt: skip
DISK = [
    Snippet("fills the disk", "for i in range(1000): open(f'/tmp/{i}', 'wb').write(bytes(1 << 20))", "OSError: No space left on device", "files"),
    Snippet("a million small files", "for i in range(10**6): open(f'/tmp/{i}', 'w').close()", "OSError: No space left on device", "files"),
    Snippet("one huge file", "open('/tmp/a', 'wb').write(bytes(64 << 20))", "OSError: File too large", "limits"),
    Snippet("a sparse file of a terabyte", "import os\nopen('/tmp/a', 'w').close()\nos.truncate('/tmp/a', 1 << 40)", "OSError: File too large", "limits"),
    Snippet("floods standard output", "while True: print('x' * 10000)", WALL, "supervisor"),
    Snippet("floods standard error from bash", "yes >&2", WALL, "supervisor", "bash"),
    Snippet("a value of 20 MB", "'x' * (20 << 20)", "runs: clipped", "supervisor", seconds=5),
    Snippet("bytes that are not text, control sequences", r"import os; os.write(1, b'\xff\xfe\x1b[2J\x00') and None", "runs: no result", "supervisor"),
]  # fmt: skip
FILES = [
    Snippet("reads a file of the host", "open('$SECRET').read()", MISSING, "files"),
    Snippet("through a symbolic link", "import os\nos.symlink('$SECRET', '/tmp/link')\nopen('/tmp/link').read()", MISSING, "files"),
    Snippet("through /proc/self/root", "open('/proc/self/root/../..$SECRET').read()", MISSING, "files"),
    Snippet("through /proc/1/root", "open('/proc/1/root$SECRET').read()", MISSING, "processes"),
    Snippet("another session's file", "open('/tmp/bystander').read()", MISSING, "files"),
    Snippet("passwords", "open('/etc/shadow').read()", MISSING, "files"),
    Snippet("rove's environment variables", "open('/proc/$PARENT/environ').read()", MISSING, "processes"),
    Snippet("its own environment variables", "import os; 'ROVE_SECRET' in os.environ", "runs: False", "supervisor"),
    Snippet("its supervisor's environment variables", "open('/proc/1/environ').read()", MISSING, "processes"),
    Snippet("writes into the system", "open('/usr/lib/evil', 'w')", READ_ONLY, "files"),
    Snippet("makes the Python it runs on writable", "import os; os.chmod(os.__file__, 0o777)", READ_ONLY, "files"),
    Snippet("writes outside", "open('/evil', 'w')", READ_ONLY, "files"),
    Snippet("kernel settings in /proc/sys", "open('/proc/sys/kernel/core_pattern', 'w')", MISSING, "processes"),
    Snippet("/proc/sysrq-trigger", "open('/proc/sysrq-trigger', 'w')", MISSING, "processes"),
    Snippet("/dev/mem", "open('/dev/mem', 'rb')", MISSING, "files"),
    Snippet("makes a device", "import os, stat; os.mknod('/tmp/sda', 0o600 | stat.S_IFBLK, os.makedev(8, 0))", REFUSED, "own user"),
    Snippet("escapes with chroot", "import os; os.chroot('/tmp')", REFUSED, "system calls"),
    Snippet("mounts", libc_call("mount(b'proc', b'/tmp', b'proc', 0, None)"), NUMBER_REFUSED, "system calls"),
    Snippet("unmounts its folder", libc_call("umount2(b'/tmp', 2)"), NUMBER_REFUSED, "system calls"),
]  # fmt: skip
KERNEL = [
    Snippet("TCP to the host", "import socket; socket.create_connection(('127.0.0.1', $PORT)).close()", REFUSED, "system calls"),
    Snippet("TCP to the host, by bash", "echo hello > /dev/tcp/127.0.0.1/$PORT", "exit status 1", "system calls", "bash"),
    Snippet("Unix socket", "import socket; socket.socket(socket.AF_UNIX)", REFUSED, "system calls"),
    Snippet("queries a name server", "import socket; socket.getaddrinfo('example.org', 80)", "socket.gaierror: Temporary failure in name resolution", "network"),
    Snippet("its own user namespace", libc_call("unshare(0x10000000)"), NUMBER_REFUSED, "system calls"),
    Snippet("the same with clone", syscall(56, "0x10000011", "0", "0", "0", "0"), NUMBER_REFUSED, "system calls"),
    Snippet("the same with clone3", syscall(435, "0", "0"), "runs: (-1, 'ENOSYS')", "system calls"),
    Snippet("enters another's namespace", libc_call("setns(os.open('/proc/self/ns/net', 0), 0)"), NUMBER_REFUSED, "system calls"),
    Snippet("loads another kernel", syscall(246, "0", "0", "0", "0"), NUMBER_REFUSED, "system calls"),
    Snippet("loads a kernel module", syscall(313, "0", "b''", "0"), NUMBER_REFUSED, "system calls"),
    Snippet("turns reboot keys off", syscall(169, "0xfee1dead", "672274793", "0", "0"), NUMBER_REFUSED, "system calls"),
    Snippet("loads a BPF program", syscall(321, "5", "0", "0"), NUMBER_REFUSED, "system calls"),
    Snippet("io_uring", syscall(425, "8", "0"), NUMBER_REFUSED, "system calls"),
    Snippet("takes the machine's asynchronous I/O", syscall(206, "65536", "ctypes.byref(ctypes.c_ulong())"), NUMBER_REFUSED, "system calls"),
    Snippet("locks a file that all can read", "import fcntl; fcntl.flock(open('/bin/sh', 'rb'), fcntl.LOCK_EX)", REFUSED, "system calls"),
    Snippet("leases a file that all can read", "import fcntl; fcntl.fcntl(open('/bin/sh', 'rb'), fcntl.F_SETLEASE, fcntl.F_RDLCK)", REFUSED, "system calls"),
    Snippet("watches a file that all can read", libc_call("inotify_init1(0)"), NUMBER_REFUSED, "system calls"),
    Snippet("watches a folder that all can read", "import fcntl, os; fcntl.fcntl(os.open('/usr', os.O_RDONLY), fcntl.F_NOTIFY, fcntl.DN_ACCESS)", REFUSED, "system calls"),
    Snippet("keys of the kernel", syscall(250, "0", "-3", "1"), NUMBER_REFUSED, "system calls"),
    Snippet("sets the clock", "import time; time.clock_settime(time.CLOCK_REALTIME, 0)", REFUSED, "system calls"),
    Snippet("becomes root", "import os; os.setuid(0)", f"{REFUSED} or OSError: Invalid argument", "own user"),
    Snippet("becomes root with su", "su -c id", "exit status 1", "own user", "bash"),
    Snippet("takes a higher priority", "import os; os.nice(-10)", REFUSED, "own user"),
    Snippet("real-time scheduling", "import os; os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))", REFUSED, "own user"),
]  # fmt: skip
PROTOCOL = [
    Snippet("forges its own answer", "import os, struct\nfor fd in range(3, 20):\n    try: os.write(fd, struct.pack('<QBI', 1, 0, 6) + b'forged')\n    except OSError: pass", "runs: forged", "supervisor"),
    Snippet("forges answers to calls to come", "import os, struct\nfor fd in range(3, 20):\n    try: os.write(fd, struct.pack('<QBI', 7, 0, 6) + b'forged')\n    except OSError: pass", "runs: no result", "supervisor"),
    Snippet("writes garbage for answers", "import os\nfor fd in range(3, 20):\n    try: os.write(fd, b'\\xff' * 1000)\n    except OSError: pass", "Python wrote a malformed answer", "supervisor"),
    Snippet("closes its pipes", "import os; os.closerange(0, 100)", "Python ended with exit status 70", "supervisor"),
    Snippet("reads the requests", "import os\nfor fd in range(3, 20):\n    try: os.read(fd, 1)\n    except OSError: pass", WALL, "supervisor"),
    Snippet("a pickle that runs code where it is loaded", "import os, pickle\nclass P:\n    def __reduce__(self): return os.system, ('id',)\npickle.dumps(P())[:4]", "runs: b'\\x80\\x04\\x95\\x1d'", "supervisor"),
    Snippet("os._exit", "import os; os._exit(0)", "Python ended with exit status 0", "supervisor"),
    Snippet("sys.exit", "import sys; sys.exit(3)", "SystemExit", "supervisor"),
    Snippet("segmentation fault", "import ctypes; ctypes.string_at(0)", "Python was ended by signal SIGSEGV", "supervisor"),
    Snippet("abort", "import os; os.abort()", "Python was ended by signal SIGABRT", "supervisor"),
    Snippet("replaces builtins", "import builtins\nfor name in ('len', 'exec', 'eval', 'isinstance', 'print', 'repr'): setattr(builtins, name, None)", "Python ended with exit status 70", "supervisor"),
    Snippet("replaces standard output", "import sys; sys.stdout = sys.stderr = None", "runs: no result", "supervisor"),
    Snippet("forks and both come back", "import os; os.fork() and None", "runs: no result", "supervisor"),
    Snippet("waits for input", "input()", "EOFError", "supervisor"),
    Snippet("code with a null character", "'\0'", "SyntaxError or ValueError", "supervisor"),
    Snippet("a hundred thousand parentheses", "(" * 100_000, "SyntaxError", "supervisor"),
]  # fmt: skip
HOST_CALLS = [
    Snippet("calls with 100 MB", "echo('x' * (100 << 20))", "ValueError or MemoryError", "limits", seconds=8),
    Snippet("100 MB past the check of size", FIND_CALLER + "asking.max_bytes = 1 << 40\necho('x' * (40 << 20))", "Python wrote a malformed answer or MemoryError", "supervisor", seconds=8),
    Snippet("requests 16 MB", "repeat('x', 16 << 20)", "RuntimeError", "supervisor", seconds=8),
    Snippet("calls a million times", "for _ in range(10**6): echo('a')", WALL, "supervisor"),
    Snippet("calls for ever, and ignores errors", "while True:\n    try: echo(1, 2, 3)\n    except RuntimeError: pass", WALL, "supervisor"),
    Snippet("calls and floods standard output", "import threading\ndef flood():\n    while True: print('x' * 1000)\nthreading.Thread(target=flood, daemon=True).start()\nwhile True: echo('a')", WALL, "supervisor"),
    Snippet("calls what it was not given", FIND_CALLER + "asking._call('__class__', (), {})", "RuntimeError", "supervisor"),
    Snippet("arguments of a function that does not take them", "echo(__globals__={}, self=1)", "RuntimeError", "supervisor"),
    Snippet("arguments that run code where they are unpacked", "class P:\n    def __reduce__(self): return print, ('evil',)\necho(P())", "TypeError", "supervisor"),
    Snippet("a call of 4 GB", write_to_pipes("struct.pack('<QBI', 1, 2, 2**32 - 1)"), "Python wrote a malformed answer", "supervisor"),
    Snippet("half a call", write_to_pipes("struct.pack('<QBI', 1, 2, 10**6) + b'{'"), WALL, "supervisor"),
    Snippet("a call that is no JSON, and continues", write_to_pipes("struct.pack('<QBI', 1, 2, 4) + b'\\xff\\x00{['"), "runs: no result", "supervisor"),
    Snippet("a megabyte that is no text for a call", write_to_pipes("struct.pack('<QBI', 1, 2, 10**6) + b'\\xff' * 10**6"), "runs: no result", "supervisor"),
    Snippet("a call nested 100,000 deep", write_to_pipes("struct.pack('<QBI', 1, 2, 10**5) + b'[' * 10**5"), "runs: no result", "supervisor"),
    Snippet("ten thousand calls without waiting", write_to_pipes("(struct.pack('<QBI', 1, 2, 2) + b'{}') * 10**4"), f"{WALL} or runs: no result", "supervisor"),
    Snippet("forges a reply", write_to_pipes("struct.pack('<QhI', 1, -1, 25) + b'{\"id\":1,\"value\":\"forged\"}'"), "Python wrote a malformed answer", "supervisor"),
    Snippet("calls from ten threads at once", "import threading\nthreading.stack_size(1 << 18)  # ten of the usual size do not fit into memory_bytes\nsaid = []\nthreads = [threading.Thread(target=lambda i=i: said.append(echo(i) == i)) for i in range(10)]\nfor one in threads: one.start()\nfor one in threads: one.join()\nsum(said)", "runs: 10", "supervisor"),
    Snippet("calls when its own call is over", "import threading, time\ndef late():\n    time.sleep(0.02)\n    echo('late')\nthreading.Thread(target=late).start()", "runs: no result", "supervisor"),
    Snippet("calls in another process", "import os\npid = os.fork()\nif not pid:\n    try: echo('a')\n    except RuntimeError: os._exit(7)\nos.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])", "runs: 7", "supervisor"),
    Snippet("the same, and hides it", FIND_CALLER + "import os\npid = os.fork()\nif not pid:\n    asking.owner = os.getpid()\n    os._exit(echo(5))\nos.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])", "runs: 5", "supervisor"),
    Snippet("calls and exits", write_to_pipes("struct.pack('<QBI', 1, 2, 29) + b'{\"name\":\"echo\",\"args\":[\"a\"]}'") + "\nos._exit(0)", "Python ended with exit status 0", "supervisor"),
    Snippet("breaks off where it waits", "import signal\ndef stop(*_): raise KeyError\nsignal.signal(signal.SIGALRM, stop)\nsignal.setitimer(signal.ITIMER_REAL, 0.02)\nwhile True: echo('a')", "KeyError", "supervisor"),
]  # fmt: skip
SNIPPETS = [*TIME, *PROCESSES, *MEMORY, *DISK, *FILES, *KERNEL, *PROTOCOL, *HOST_CALLS]


WITHOUT = [
    (("files",), "reads a file of the host", "runs: 'canary'"),
    (("network",), "TCP to the host", REFUSED),
    (("network", "system calls"), "TCP to the host", "runs: no result"),
    (("system calls",), "System V shared memory", "runs: (0, None)"),
    (("system calls",), "mounts", NUMBER_REFUSED),
    (("system calls",), "locks a file that all can read", "runs: no result"),
    (("memory group",), "four processes with 120 MB each", "runs: False"),
]
"""Disabled features, a harmless attack that they would stop, and its outcome without them."""


IN_CONTAINERS = {
    "fills the disk": "OSError: No space left on device or Python was ended by signal SIGKILL",
    "a million small files": f"OSError: No space left on device or {WALL}",
    "becomes root with su": f"exit status 1 or {WALL}",
    "kernel settings in /proc/sys": READ_ONLY,
    "passwords": DENIED,
    "opens its supervisor's memory": DENIED,
    "through /proc/1/root": DENIED,
    "its supervisor's environment variables": DENIED,
}
"""Outcomes in containers of the attacks that end differently there."""


def outcome(result: Result) -> str:
    """Return a short description of a result."""
    if result.restarted:
        return re.sub(r" \(.*\)$", "", result.error)
    if result.error:
        last = result.error.splitlines()[-1]
        kind, errno_text = re.match(r"([\w.]+)(?:: \[Errno -?\d+\] ([^:]*))?", last).groups()  # pyright: ignore[reportOptionalMemberAccess]
        return (
            kind if kind in ("FileNotFoundError", "ProcessLookupError") or not errno_text else f"{kind}: {errno_text}"
        )
    if result.exit_code:
        return f"exit status {result.exit_code}"
    return f"runs: {'clipped' if result.truncated else result.value or 'no result'}"


def attack_table() -> str:
    """Return the table of attacks as Markdown."""
    lines = ["| # | attempt | what happens | contained by |", "|---|---|---|---|"]
    for number, snippet in enumerate(SNIPPETS, 1):
        name = f"{snippet.name} (bash)" if snippet.kind == "bash" and "bash" not in snippet.name else snippet.name
        lines.append(f"| {number} | {name} | {snippet.outcome} | {snippet.contained_by} |")
    return "\n".join(lines) + "\n"


def rows_without_features() -> str:
    """Return the rows of the table of attacks with disabled features."""
    return "".join(f"| {', '.join(off)} | {name} | {outcome} |\n" for off, name, outcome in WITHOUT)


def feature_rows() -> str:
    """Return the rows of the table of features."""
    rows = ((f"{name}{' *' if name in ESSENTIAL else ''}", lacks) for name, lacks in FEATURES.items())
    return "".join(f"| {name} | {lacks} |\n" for name, lacks in rows)


PAGE = Path(__file__).resolve().parents[2] / "docs/sandbox.md"
TABLES = {
    "| feature | not contained without it |\n|---|---|\n": feature_rows,
    "<!-- made by tests/support/hostile.py -->\n": attack_table,
    "| without | attempt | what happens |\n|---|---|---|\n": rows_without_features,
}
"""The lines before each table of the page, and the function that writes its rows; a table ends before the first other line."""


def update_tables(page: str) -> str:
    """Return the page with current tables."""
    for head, rows in TABLES.items():
        prefix, _, suffix = page.partition(head)
        lines = suffix.splitlines(keepends=True)
        while lines and lines[0].startswith("|"):
            del lines[0]
        page = prefix + head + rows() + "".join(lines)
    return page


if __name__ == "__main__":
    PAGE.write_text(update_tables(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
