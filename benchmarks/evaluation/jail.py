"""Runs one program that may be hostile. A script of its own, started by sandbox.py; nothing of the project is imported.

    sandbox.py --(stdin: length, program; then a lifeline)--> this script --fork, exec--> Python with the program
               <-------(stdout: one JSON object)------------

Isolated, the program is process 1 of namespaces of its own: no network, no other processes to signal, and a root folder
in which there are Python and the system's libraries, read-only, and one empty folder of bounded size. It has no
capabilities and cannot get any; started by root, it runs as a user that nobody else is. It cannot ask for memory that
no limit counts. With its process 1 everything that it started ends. Limits on memory, CPU time, files and processes
hold in any case.
"""

import contextlib
import ctypes
import errno
import json
import os
import resource
import select
import signal
import struct
import sys
import tempfile
import time
from typing import Any, NoReturn

_NEWNS, _NEWUTS, _NEWIPC, _NEWUSER, _NEWPID, _NEWNET = 0x20000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000
_MS_NOSUID, _MS_NODEV, _MS_BIND, _MS_REC, _MS_PRIVATE = 2, 4, 4096, 16384, 1 << 18
_SYS_MOUNT_SETATTR, _AT_FDCWD, _AT_RECURSIVE, _ATTR_RDONLY = 442, -100, 0x8000, 1
_PR_SET_PDEATHSIG, _PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS = 1, 22, 38
_SECCOMP_MODE_FILTER, _SECCOMP_ERRNO, _SECCOMP_ALLOW = 2, 0x00050000, 0x7FFF0000
# System calls whose memory outlives its mapping and is bounded by no limit of a process: shmget, msgget, semget,
# memfd_create, memfd_secret. By machine: the number that audit has for it, and theirs; linux/audit.h, asm/unistd.h.
_UNCOUNTED = {
    "x86_64": (0xC000003E, (29, 68, 64, 319, 447)),
    "aarch64": (0xC00000B7, (194, 186, 190, 279, 447)),
    "riscv64": (0xC00000F3, (194, 186, 190, 279, 447)),
}
_VERDICT, _PROGRAM, _REFUSAL = 3, 4, 5  # file descriptors of the program's process; the last is gone once it runs
_SYSTEM = ("/usr", "/bin", "/lib", "/lib32", "/lib64", "/nix/store", "/etc/ld.so.cache")
_DEVICES = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")
_WORK = "/work"

# The names that the program finds are its own; leaving early, by whatever exit, is no success. (One that looks for the
# word finds it: nothing in its own process can be kept from it.) What -I stands for is spelt out where it is run, but
# for the one variable that makes hashes, and so the order of sets, the same each time.
_RUNNER = f"""
import os, sys, types
word = sys.argv.pop()
program = os.fdopen({_PROGRAM}, "rb").read()
module = sys.modules["__main__"] = types.ModuleType("__main__")
try:
    exec(compile(program, "<answer>", "exec"), module.__dict__)
    told = word
except BaseException as error:
    told = f"{{type(error).__name__}}: {{error}}"[:200]
os.write({_VERDICT}, told.encode("utf-8", "replace"))
os._exit(0)
"""


def main() -> int:
    limits = json.loads(sys.argv[1])
    program = tempfile.TemporaryFile()  # noqa: SIM115 -- the child reads it
    program.write(_read(int.from_bytes(_read(8))))
    program.flush()
    program.seek(0)
    if limits["isolated"]:
        try:
            _enter_namespaces()
        except OSError as error:
            return _tell({"refused": f"unshare: {error.strerror}"})
    word = os.urandom(16).hex()
    (reading, writing), (refusal, refusing) = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        _become(program.fileno(), writing, refusing, word, limits)
    os.close(writing)
    os.close(refusing)
    outcome = _watch(child, limits["seconds"])
    if refused := _told(refusal):
        return _tell({"refused": refused})
    told = _told(reading)
    return _tell({"passed": told == word, "reason": "" if told == word else outcome or told[:200] or "ended early"})


def _read(size: int) -> bytes:
    parts = []
    while size and (part := os.read(0, min(size, 1 << 20))):
        parts.append(part)
        size -= len(part)
    if size:
        sys.exit("the program did not arrive")
    return b"".join(parts)


def _told(pipe: int) -> str:
    """What stands in it, without waiting: somebody may hold its other end still."""
    os.set_blocking(pipe, False)
    with contextlib.suppress(BlockingIOError):
        return os.read(pipe, 4096).decode("utf-8", "replace")
    return ""


def _tell(answer: dict[str, Any]) -> int:
    print(json.dumps(answer), flush=True)
    return 0


def _watch(child: int, seconds: float) -> str:
    """Wait for it, at most so long and while somebody holds the lifeline; why it was ended, "" if it ended itself."""
    lifeline = select.poll()
    lifeline.register(0, select.POLLIN | select.POLLHUP)
    ends = time.monotonic() + seconds
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return _cause(status)
        if time.monotonic() > ends or lifeline.poll(5):
            for kill, whom in ((os.kill, child), (os.killpg, child)):
                with contextlib.suppress(OSError):
                    kill(whom, signal.SIGKILL)
            os.waitpid(child, 0)
            return "took too long"


def _cause(status: int) -> str:
    number = os.waitstatus_to_exitcode(status)
    if number >= 0:
        return ""
    return "took too long" if -number in (signal.SIGKILL, signal.SIGXCPU) else f"died of signal {-number}"


def _become(program: int, writing: int, refusing: int, word: str, limits: dict[str, Any]) -> NoReturn:
    """Turn this process into the program's. What stops it is written to `refusing`, which closes as Python is executed:
    no program can say that it was refused."""
    # First out of the way of the numbers that they are to have.
    program, writing, refusing = (os.dup2(fd, 20 + n, False) for n, fd in enumerate((program, writing, refusing)))
    try:
        os.dup2(program, _PROGRAM)
        os.dup2(writing, _VERDICT)
        os.dup2(refusing, _REFUSAL, inheritable=False)
        os.setsid()
        python = os.path.realpath(sys.executable)
        if limits["isolated"]:
            _build_root(os.getcwd(), python, limits["files"])
        nothing = os.open("/dev/null", os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(nothing, fd)
        os.closerange(_REFUSAL + 1, 1 << 16)
        _bound(limits)
        if limits["isolated"]:
            _give_up_rights()
        where = _WORK if limits["isolated"] else os.getcwd()
        environment = {"PATH": "/usr/bin:/bin", "HOME": where, "TMPDIR": where, "PYTHONHASHSEED": "0"}
        flags = ["-s", "-P", "-S", "-B", "-X", "utf8"]
        os.execve(python, [python, *flags, "-c", _RUNNER, word], environment)
    except BaseException as error:
        os.write(_REFUSAL, (str(error) or type(error).__name__)[:400].encode())
    os._exit(1)


def _bound(limits: dict[str, Any]) -> None:
    for what, most in (
        (resource.RLIMIT_AS, limits["memory"]),
        (resource.RLIMIT_CPU, limits["cpu_seconds"]),
        (resource.RLIMIT_FSIZE, limits["files"]),
        (resource.RLIMIT_NOFILE, 64),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NPROC, limits["processes"]),
    ):
        _, hard = resource.getrlimit(what)
        bound = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(what, (bound, bound))


def _libc() -> Any:
    return ctypes.CDLL(None, use_errno=True)


def _checked(result: int, what: str) -> None:
    if result != 0:
        raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")


def _enter_namespaces() -> None:
    """Its children are in them. Root needs no user namespace for it; anybody else gets one in which to be allowed."""
    uid, gid = os.geteuid(), os.getegid()
    flags = _NEWNS | _NEWUTS | _NEWIPC | _NEWPID | _NEWNET
    _checked(_libc().unshare(flags if uid == 0 else flags | _NEWUSER), "unshare")
    if uid != 0:
        for file, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
            with open(f"/proc/self/{file}", "w") as mapping:
                mapping.write(text)


def _mount(source: str, target: str, kind: str | None, flags: int, options: str | None = None) -> None:
    encoded = [None if text is None else os.fsencode(text) for text in (source, target, kind, options)]
    _checked(_libc().mount(*encoded[:3], ctypes.c_ulong(flags), encoded[3]), f"mount {target}")


def _build_root(root: str, python: str, file_bytes: int) -> None:
    """A root folder in `root`, which only these namespaces see, and move into it."""
    _mount("none", "/", None, _MS_REC | _MS_PRIVATE)
    _mount("tmpfs", root, "tmpfs", _MS_NOSUID | _MS_NODEV, "size=1m,mode=755")
    prefix = os.path.realpath(sys.base_prefix)
    if os.path.commonpath([prefix, python]) != prefix:
        prefix = os.path.dirname(os.path.dirname(python))
    shown = [path for path in (*_SYSTEM, *_DEVICES) if os.path.lexists(path)]
    if not any(os.path.commonpath([prefix, path]) == path for path in shown):
        shown.append(prefix)
    for path in shown:
        _show(path, root + path)
    os.mkdir(root + _WORK)
    # Read-only all the way down: struct mount_attr of (attr_set, attr_clr, propagation, userns_fd).
    attributes = (ctypes.c_uint64 * 4)(_ATTR_RDONLY, 0, 0, 0)
    at = (_AT_FDCWD, os.fsencode(root), _AT_RECURSIVE, ctypes.byref(attributes), ctypes.sizeof(attributes))
    _checked(_libc().syscall(_SYS_MOUNT_SETATTR, *at), "mount_setattr")
    _mount("tmpfs", root + _WORK, "tmpfs", _MS_NOSUID | _MS_NODEV, f"size={4 * file_bytes},nr_inodes=4096,mode=1777")
    os.chroot(root)
    os.chdir(_WORK)


def _show(path: str, target: str) -> None:
    os.makedirs(os.path.dirname(target), exist_ok=True)
    if os.path.islink(path):
        os.symlink(os.readlink(path), target)
        return
    if os.path.isdir(path):
        os.makedirs(target, exist_ok=True)
    else:
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY))
    _mount(path, target, None, _MS_BIND | _MS_REC)


def _give_up_rights() -> None:
    """Root becomes a user of whom nobody else is, so that limits count its processes alone; whoever is no user of
    number 0 loses all capabilities when Python is executed."""
    if os.geteuid() == 0:
        os.setgroups([])
        for number in (1 << 30 | int.from_bytes(os.urandom(3)), 65534):
            try:
                os.setresgid(number, number, number)
                os.setresuid(number, number, number)
                break
            except OSError:
                continue
        if os.geteuid() == 0:
            raise OSError("root cannot become anybody else here")
    libc = _libc()
    _checked(libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")
    _checked(libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "pdeathsig")
    _refuse_uncounted_memory(libc)


def _refuse_uncounted_memory(libc: Any) -> None:
    """A filter of system calls (seccomp(2)): those of _UNCOUNTED, of other machines' numbers and of x32 are not
    permitted, for this process and all that come of it."""
    machine = os.uname().machine
    if machine not in _UNCOUNTED:
        raise OSError(f"system calls of {machine} are not known here")
    audit, numbers = _UNCOUNTED[machine]
    load, equal, at_least, answer = 0x20, 0x15, 0x35, 0x06  # BPF_LD|W|ABS, BPF_JMP|JEQ|K, BPF_JMP|JGE|K, BPF_RET|K
    refuse = (answer, 0, 0, _SECCOMP_ERRNO | errno.EPERM)
    steps = [  # (code, steps to jump if so, if not, operand); struct seccomp_data has the number at 0, the machine at 4
        (load, 0, 0, 4), (equal, 1, 0, audit), refuse,
        (load, 0, 0, 0), (at_least, len(numbers) + 1, 0, 1 << 30),
        *((equal, len(numbers) - n, 0, number) for n, number in enumerate(numbers)),
        (answer, 0, 0, _SECCOMP_ALLOW), refuse,
    ]  # fmt: skip
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *step) for step in steps))
    program = ctypes.create_string_buffer(struct.pack("@HP", len(steps), ctypes.addressof(code)))
    _checked(libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, program, 0, 0), "seccomp")


if __name__ == "__main__":
    sys.exit(main())
