"""Why a download failed, in one line without secrets: what the reader can act on, not what the client made of it."""

import os
import re
import ssl

from server.weights.errors import SourceUnavailableError

_UNTRUSTED = "CERTIFICATE_VERIFY_FAILED"
_SECRET = re.compile(r"(?<=://)[^/@\s]+(?=@)|(?<=Bearer )\S+")
_RETRIED = re.compile(r"after connection broken by '(.*)': /")
_SYSTEM = re.compile(r"\[(?:SSL|Errno)\b[^\]]*\][^'\"()]*")
_PLACE = re.compile(r"\(_ssl\.c:\d+\)")  # where in OpenSSL's binding
_MOST = 300  # characters


def of_exception(error: BaseException) -> str:
    """The words of the innermost exception that has any: those around it only say that something failed."""
    text, inner = "", error
    while inner is not None:
        text = str(inner).strip() or text
        inner = inner.__cause__ or inner.__context__  # type: ignore[assignment]
    return _line(text or type(error).__name__)


def of_pip(stderr: str) -> str:
    """The last meaningful of pip's lines: what broke the connection, else the end of its traceback, else its error."""
    if broken := _RETRIED.findall(stderr):
        system = _SYSTEM.search(broken[-1])
        return _line(system[0] if system else broken[-1])
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    if any(line.startswith("Traceback") for line in lines):
        return _line(lines[-1].partition(": ")[2] or lines[-1])
    errors = [line for line in lines if line.startswith("ERROR")] or lines[-1:]
    return _line(" ".join(errors) or "no reason given")


def unreachable(source: str, cause: str, variable: str) -> SourceUnavailableError:
    """variable: where the source's client looks for the certificates it trusts."""
    if _UNTRUSTED in cause:
        return SourceUnavailableError(
            f"{source}: its certificate is not trusted ({cause}). If a proxy signs with a CA of its own, name a file "
            f"with that CA in {variable}"
        )
    return SourceUnavailableError(f"{source} cannot be reached (is the network up?): {cause}")


def require_certificates(source: str) -> None:
    """SourceUnavailableError if SSL_CERT_FILE names no certificates: the client's own error would not name the file."""
    file = os.environ.get("SSL_CERT_FILE")
    if not file:
        return
    try:
        ssl.create_default_context(cafile=file)
    except OSError as error:
        reason = "holds no certificate" if isinstance(error, ssl.SSLError) else error.strerror or str(error)
        raise SourceUnavailableError(f"{source}: SSL_CERT_FILE = {file}: {reason}") from error


def _line(text: str) -> str:
    return _SECRET.sub("***", " ".join(_PLACE.sub("", text).split())).rstrip(".")[:_MOST]
